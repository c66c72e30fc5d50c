// Bad input of every kind: exit code 2, a message that says what, where and what to do, and nothing half-written.
#include <filesystem>

#include "program.h"
#include "testing.h"

namespace faultline {
namespace {

std::string experiment(const std::string& axes) {
  return "model: synth:tiny\naxes:\n" + axes + kQuickProbes;
}

void copy_golden(const TempDir& folder, const std::string& name) {
  std::filesystem::copy(std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny", folder.file(name));
}

// Ends with 2, says each of `words`, and makes no run directory.
void check_refused(const TempDir& folder, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& words) {
  const Outcome outcome = faultline(arguments);
  INFO(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  for (const std::string& word : words) {
    INFO(word);
    CHECK(outcome.err.find(word) != std::string::npos);
  }
  CHECK(files_in(folder.file("reports")).empty());
}

const char* const kGood = "  kv_cache_dtype: [bf16]\n  cuda_graph: [off]\n";

// In a mount namespace of its own, with a file system of `options` at FOLDER. "" where that is not possible here.
std::string in_namespace(const std::string& folder, const std::string& options, const std::string& command) {
  return "unshare -rm sh -c 'mount -t tmpfs -o " + options + " none " + folder + " || exit 99; " + command + "'";
}

}  // namespace

TEST_CASE("a broken experiment is refused with its line and the nearest valid name") {
  struct Case {
    const char* what;
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"unknown key", "modell: synth:tiny\n", {"case.yaml:1", "modell", "model"}},
      {"unknown axis", experiment("  kv_cache_dtpye: [bf16]\n"), {"case.yaml:3", "kv_cache_dtpye", "'kv_cache_dtype'"}},
      {"unknown value", experiment("  kv_cache_dtype: [fp8_e4m4]\n"), {"case.yaml:3", "fp8_e4m4", "'fp8_e4m3'"}},
      {"duplicate axis",
       experiment("  kv_cache_dtype: [bf16]\n  kv_cache_dtype: [f32]\n"),
       {"case.yaml:4", "kv_cache_dtype"}},
      {"duplicate key", "model: synth:tiny\nmodel: synth:slim\n", {"case.yaml:2", "model"}},
      {"duplicate value", experiment("  kv_cache_dtype: [bf16, bf16]\n"), {"case.yaml:3", "bf16"}},
      {"empty axis", experiment("  kv_cache_dtype: []\n"), {"case.yaml:3", "kv_cache_dtype"}},
      {"unknown plant", experiment(kGood) + "plant: [late_tiel]\n", {"late_tiel", "late_tile"}},
      {"unknown level", experiment(kGood) + "checks: ful\n", {"ful", "full"}},
      {"no YAML", "model: [synth:tiny\naxes: {", {"case.yaml:"}},
      {"empty file", "", {"case.yaml"}},
      {"not a map", "- a\n- b\n", {"case.yaml:1"}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.what) {
      const TempDir folder;
      check_refused(folder, {"bisect", folder.write("case.yaml", c.text), "--out", folder.file("reports")}, c.words);
    }
  }
}

TEST_CASE("a flag with a bad value is refused") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  const std::string reports = folder.file("reports");
  check_refused(folder, {"bisect", path, "--out", reports, "--plant", "late_tiel"}, {"late_tile"});
  check_refused(folder, {"bisect", path, "--out", reports, "--plant", "late_tile@layr=2"}, {"layr"});
  check_refused(folder, {"bisect", path, "--out", reports, "--checks", "ful"}, {"full"});
  check_refused(folder, {"bisect", path, "--out", reports, "--arch", "sm_12"}, {"sm_120"});
  check_refused(folder, {"bisect", path, "--out", reports, "--profile", "sglang-0.5.8"}, {"sglang-0.5.9"});
  check_refused(folder, {"bisect", path, "--out", reports, "--repeats", "0"}, {"--repeats: a number from 1 up"});
  check_refused(folder, {"bisect", path, "--out", reports, "--model", "synth:tinny"}, {"tiny"});
  check_refused(folder, {"bisect", folder.file("none.yaml"), "--out", reports}, {"none.yaml"});
}

TEST_CASE("a model that is missing, incomplete or another one's is refused before anything is made") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  const auto with_model = [&](const std::string& model) {
    return std::vector<std::string>{"bisect", path, "--out", folder.file("reports"), "--model", model};
  };
  check_refused(folder, with_model(folder.file("nowhere")), {"nowhere"});
  check_refused(folder,
                {"bisect", folder.write("none.yaml", std::string("axes:\n") + kGood), "--out", folder.file("reports")},
                {"--model"});

  copy_golden(folder, "cut");
  const std::string shard = folder.file("cut/model-00002-of-00002.safetensors");
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 100);
  check_refused(folder, with_model(folder.file("cut")), {"model-00002-of-00002.safetensors"});
  CHECK(faultline({"inspect", folder.file("cut")}).code == 1);

  std::filesystem::remove(shard);
  check_refused(folder, with_model(folder.file("cut")), {"model-00002-of-00002.safetensors"});

  copy_golden(folder, "other");
  std::string config = read_text(folder.file("other/config.json"));
  const size_t at = config.find("glm_moe_dsa");
  REQUIRE(at != std::string::npos);
  config.replace(at, std::string("glm_moe_dsa").size(), "llama");
  folder.write("other/config.json", config);
  check_refused(folder, with_model(folder.file("other")), {"llama", "glm_moe_dsa"});
  CHECK(faultline({"inspect", folder.file("other")}).code == 2);

  std::string architectures = read_text(std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny/config.json");
  const size_t class_at = architectures.find("GlmMoeDsaForCausalLM");
  REQUIRE(class_at != std::string::npos);
  folder.write("other/config.json", architectures.replace(class_at, 3, "Gpt"));
  check_refused(folder, with_model(folder.file("other")), {"GptMoeDsaForCausalLM"});

  folder.write("other/config.json", "{\"model_type\": ");
  check_refused(folder, with_model(folder.file("other")), {"config.json"});
}

TEST_CASE("a hostile shard is refused, whatever its header claims") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  const std::string golden =
      read_text(std::string(FAULTLINE_SOURCE_DIR) + "/tests/goldens/tiny/model-00001-of-00002.safetensors");
  const std::string past_the_file(8, '\x7f');
  const std::string huge_shape =
      "{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,4]}}";
  std::string length(8, '\0');
  length[0] = static_cast<char>(huge_shape.size());
  for (const std::string& shard :
       {past_the_file + golden.substr(8), length + huge_shape + "1234", std::string("short")}) {
    const TempDir model;
    copy_golden(model, "m");
    model.write("m/model-00001-of-00002.safetensors", shard);
    check_refused(folder, {"bisect", path, "--out", folder.file("reports"), "--model", model.file("m")},
                  {"model-00001-of-00002.safetensors"});
    CHECK(faultline({"inspect", model.file("m")}).code != 0);
  }
}

TEST_CASE("an output folder that cannot be made is refused") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  for (const std::string& out : {path + "/reports", std::string("/proc/nowhere/reports"), std::string("/dev/null")}) {
    const Outcome outcome = faultline({"bisect", path, "--out", out});
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find(out.substr(0, out.rfind('/'))) != std::string::npos);
  }
  // Parents that do not exist are made.
  CHECK(faultline({"bisect", path, "--out", folder.file("a/b/c")}).code == 0);
  CHECK_FALSE(run_directory_in(folder.file("a/b/c")).empty());
}

TEST_CASE("numbers of the command line have bounds that are said, and options of a plan ask for one") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  // 2^44 + 512: as bytes, 512 MiB more than 64 bits hold.
  for (const char* mib : {"0", "-1", "17592186044928"})
    CHECK(faultline({"bisect", path, "--out", folder.file("reports"), "--memory-limit", mib}).code == 2);
  for (const char* ranks : {"0", "-1", "99999999999999999999", "some"}) {
    const Outcome outcome = faultline({"inspect", "synth:tiny", "--plan", "--tp", ranks});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("1024") != std::string::npos);
  }
  for (const std::vector<std::string>& option : std::vector<std::vector<std::string>>{
           {"--tp", "2"}, {"--residency", "host"}, {"--gpu-memory", "80GiB"}, {"--host-memory", "8GiB"}}) {
    const Outcome outcome = faultline({"inspect", "synth:tiny", option[0], option[1]});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("--plan") != std::string::npos);
  }
}

TEST_CASE("a file for --json that cannot be written is an error") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  const Outcome outcome =
      faultline({"bisect", path, "--out", folder.file("reports"), "--json", folder.file("no/such.json")});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("such.json") != std::string::npos);
  // Before anything is run: these say so at once.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"selftest", "--device", "cpu", "--json", folder.file("no/such.json")},
        {"replay", path, "--json", folder.file("")}}) {
    const Outcome early = faultline(command);
    CHECK(early.code == 2);
    CHECK(early.err.find("--json") != std::string::npos);
    CHECK(early.err.find("[0/") == std::string::npos);
  }
  // A link, so that a program that replaced it would not take the device away.
  std::filesystem::create_symlink("/dev/full", folder.file("full"));
  CHECK(faultline({"preflight", path, "--json", folder.file("full")}).code == 2);
  CHECK(std::filesystem::is_symlink(folder.file("full")));
  for (const std::string& command : {"bisect " + path + " --out " + folder.file("reports") + " --json -",
                                     "preflight " + path, std::string("inspect synth:tiny")}) {
    INFO(command);
    const Outcome full = run_program("sh", {"-c", "exec " FAULTLINE_PROGRAM " " + command + " > /dev/full"});
    CHECK(full.code == 2);
    CHECK(full.err.find("stdout") != std::string::npos);
  }
}

TEST_CASE("a read-only or a full disk ends a run with a message; the journal holds whole lines only") {
  const TempDir folder;
  const std::string path = folder.write("case.yaml", experiment(kGood));
  const std::string disk = folder.file("disk");
  std::filesystem::create_directory(disk);
  const std::string bisect = std::string(FAULTLINE_PROGRAM) + " bisect " + path + " --out " + disk + "/reports";
  const auto on_disk = [&](const std::string& options, const std::string& command) {
    return run_program("sh", {"-c", in_namespace(disk, options, command)});
  };
  if (on_disk("size=1m", "true").code != 0) {
    WARN("skipped: file systems cannot be mounted here (unshare -rm)");
    return;
  }
  const Outcome read_only = on_disk("ro", bisect);
  INFO(read_only.err);
  CHECK(read_only.code == 2);
  CHECK(read_only.err.find(disk) != std::string::npos);

  // Full at once, and full when the reports are written.
  for (const char* size : {"nr_inodes=3,size=64k", "size=4k", "size=12k"}) {
    const Outcome full = on_disk(
        size,
        bisect + "; code=$?; for f in " + disk +
            "/reports/*/*; do printf \"%s %s\\n\" \"$(tail -c 1 $f | od -An -c | tr -d \" \")\" $f; done; exit $code");
    INFO(size << "\n" << full.out << full.err);
    CHECK(full.code == 2);
    CHECK(full.err.find(disk) != std::string::npos);
    // Each text file that is there ends with a newline or is empty: none is cut.
    for (const char* name : {"journal.jsonl", "FINDINGS.md", "findings.json", "run.json", "experiment.yaml"}) {
      const size_t at = full.out.find(name);
      if (at == std::string::npos) continue;
      const size_t begin = full.out.rfind('\n', at) + 1;
      CHECK((full.out.compare(begin, 2, "\\n") == 0 || full.out[begin] == ' '));
    }
  }
}

TEST_CASE("forward, synth, replay and inspect refuse bad input too") {
  const TempDir folder;
  const std::string out = folder.file("out.safetensors");
  const auto forward = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"forward", "synth:tiny", "--out", out});
    return faultline(arguments);
  };
  CHECK(forward({"--tokens", "1,x"}).code == 2);
  CHECK(forward({"--tokens", ""}).code == 2);
  CHECK(forward({"--tokens", "99999999"}).code == 2);
  CHECK(forward({"--tokens", "1", "--set", "kv_cache_dtpye=bf16"}).err.find("kv_cache_dtype") != std::string::npos);
  CHECK(forward({"--tokens", "1", "--decode", "-1"}).code == 2);
  CHECK_FALSE(exists(out));
  CHECK(faultline({"synth", "tinny", "--out", folder.file("model")}).code == 2);
  CHECK(faultline({"synth", "tiny", "--set", "hidden_size=-4", "--out", folder.file("model")}).code == 2);
  CHECK_FALSE(exists(folder.file("model")));
  CHECK(faultline({"inspect", folder.file("nowhere")}).code == 2);
  CHECK(faultline({"replay", folder.file("nowhere.yaml")}).code == 2);
}

}  // namespace faultline
