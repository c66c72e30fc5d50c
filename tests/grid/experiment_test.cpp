#include "grid/experiment.h"

#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

std::string error_of(std::string_view text, const std::vector<std::string>& plants = {}) {
  const auto result = parse_experiment(text, "f.yaml", plants);
  return result ? "no error" : result.error().message;
}

struct Bad {
  const char* text;
  const char* expected;  // part of the message, line included
};

constexpr std::string_view kFull = R"(name: glm5-sm120
model: /models/GLM-5-NVFP4
profile: sglang-2026-04
arch: sm_120
axes:
  attention_backend: [dsa, flashinfer, triton]
  kv_cache_dtype: [bfloat16, fp8_e4m3]
  cuda_graph: [off, on]
  batch: [1, 8]
exclude:
  - {attention_backend: triton, cuda_graph: on}
  - {attention_backend: [flashinfer, triton], kv_cache_dtype: fp8_e4m3, batch: 8}
probes:
  tokens: repeat
  sampling: {temperature: 0, top_p: 0.5}
  sequence: plain
  prefill: {lengths: [1, 63, 2049], chunk: 512}
  decode: {contexts: [64, 2047], batch: [1, 3], steps: 4}
checks: reference
strategy: pairs
repeats: 3
seed: 11
plant: [late_tile, pow2_scales@layers.3]
shape_rules: actual
run_unsupported: true
time_limit: 600
timeout: 2.5
memory_limit: 512MiB
)";

}  // namespace

TEST_CASE("every key of an experiment is read") {
  const auto e = parse_experiment(kFull, "f.yaml");
  REQUIRE(e);
  CHECK(e->name == "glm5-sm120");
  CHECK(e->model == "/models/GLM-5-NVFP4");
  CHECK(e->profile == "sglang-2026-04");
  CHECK(e->arch == "sm_120");
  REQUIRE(e->axes.size() == 4);
  CHECK(e->axes[0].values == std::vector<std::string>{"nsa", "flashinfer", "triton"});
  CHECK(e->axes[1].values == std::vector<std::string>{"bf16", "fp8_e4m3"});
  CHECK(e->axes[2].values == std::vector<std::string>{"off", "on"});
  REQUIRE(e->exclude.size() == 2);
  CHECK(e->exclude[0].when[1].values == std::vector<std::string>{"on"});
  CHECK(e->exclude[1].when[0].values.size() == 2);
  CHECK(e->probes.tokens == "repeat");
  CHECK(e->probes.sampling.temperature == 0);
  CHECK(e->probes.sampling.top_p == 0.5);
  CHECK(e->probes.sequence == "plain");
  CHECK(e->probes.prefill_lengths == std::vector<int64_t>{1, 63, 2049});
  CHECK(e->probes.prefill_chunk == 512);
  CHECK(e->probes.decode_contexts == std::vector<int64_t>{64, 2047});
  CHECK(e->probes.decode_batch == std::vector<int64_t>{1, 3});
  CHECK(e->probes.decode_steps == 4);
  CHECK(e->checks == "reference");
  CHECK(e->strategy == "pairs");
  CHECK(e->repeats == 3);
  CHECK(e->seed == 11);
  CHECK(e->plant == std::vector<std::string>{"late_tile", "pow2_scales@layers.3"});
  CHECK(e->shape_rules == "actual");
  CHECK(e->run_unsupported);
  CHECK(e->time_limit == 600);
  CHECK(e->timeout == 2.5);
  CHECK(e->memory_limit == int64_t{512} << 20);
  CHECK(e->probes.longest_context() == 2051);
}

TEST_CASE("what is left out has the documented defaults, and probes none") {
  const auto e = parse_experiment("axes: {kv_cache_dtype: bf16}\n", "dir/my exp.v2.yaml");
  REQUIRE(e);
  CHECK(e->name == "my_exp_v2");
  CHECK(e->model.empty());
  CHECK(e->profile == "sglang-0.5.9");
  CHECK(e->arch == "any");
  CHECK(e->checks == "full");
  CHECK(e->strategy == "full");
  CHECK(e->repeats == 1);
  CHECK(e->seed == 7);
  CHECK(e->plant.empty());
  CHECK(e->shape_rules == "glm5");
  CHECK_FALSE(e->run_unsupported);
  CHECK_FALSE(e->time_limit);
  CHECK(e->probes.prefill_lengths.empty());
  CHECK_FALSE(e->probes.decode_steps);
  CHECK(e->probes.longest_context() == 0);
}

TEST_CASE("YAML 1.1 booleans work where the server says off and on") {
  for (const char* spelling : {"[off, on]", "[false, true]", "[Off, ON]", "[no, yes]", "['off', 'on']"}) {
    const auto e =
        parse_experiment(fmt::format("axes: {{cuda_graph: {}}}\nchecks: off\nplant: []\n", spelling), "f.yaml");
    REQUIRE(e);
    CHECK(e->axes[0].values == std::vector<std::string>{"off", "on"});
    CHECK(e->checks == "off");
    CHECK(e->plant.empty());
  }
  CHECK(parse_experiment("axes: {cuda_graph: on}\n", "f.yaml")->axes[0].values == std::vector<std::string>{"on"});
}

TEST_CASE("a written experiment reads back the same") {
  auto first = parse_experiment(kFull, "f.yaml");
  REQUIRE(first);
  first->model = "synth:tiny?seed=\"3\"\\x";
  const std::string text = write_experiment(*first);
  const auto second = parse_experiment(text, "g.yaml");
  REQUIRE(second);
  CHECK(second->model == first->model);
  CHECK(write_experiment(*second) == text);
  const auto small = parse_experiment("axes: {cuda_graph: off}\nchecks: off\n", "f.yaml");
  CHECK(write_experiment(*parse_experiment(write_experiment(*small), "f.yaml")) == write_experiment(*small));
}

TEST_CASE("bad experiments are refused with the line and what would be valid") {
  const Bad corpus[] = {
      {"", "f.yaml: empty"},
      {"name: x\n", "f.yaml: no 'axes'"},
      {"- a\n", "f.yaml:1: the experiment must be a map"},
      {"axes:\n", "f.yaml:1: axes must be a map"},
      {"axes: {}\n", "f.yaml:1: axes is empty"},
      {"axes: [tp]\n", "f.yaml:1: axes must be a map"},
      {"axes:\n  tp: []\n", "f.yaml:2: axis tp has no values"},
      {"axes:\n  tp:\n", "f.yaml:2: axis tp has no values"},
      {"axes:\n  kv_cache_dtype: [bf16, ]\n  tp: {a: 1}\n", "f.yaml:3: axis tp must be a list"},
      {"axes:\n  kv_dtype: [bf16]\n", "f.yaml:2: unknown axis 'kv_dtype'"},
      {"axes:\n  nsa_decode_backnd: [trtllm]\n",
       "f.yaml:2: unknown axis 'nsa_decode_backnd'; did you mean 'nsa_decode_backend'?"},
      {"axes:\n  kv_cache_dtype:\n    - bf16\n    - fp8_e4m4\n",
       "f.yaml:4: kv_cache_dtype has no value 'fp8_e4m4'; did you mean 'fp8_e4m3'?"},
      {"axes:\n  kv_cache_dtype: [bf16, bfloat16]\n", "f.yaml:2: axis kv_cache_dtype has the value 'bf16' twice"},
      {"axes:\n  tp: [1]\n  tp: [2]\n", "f.yaml:3: the key 'tp' appears twice (first in line 2)"},
      {"axes: {tp: [1]}\nseed: 1\nseed: 2\n", "f.yaml:3: the key 'seed' appears twice"},
      {"axes: {batch: [0]}\n", "f.yaml:1: batch takes integers from 1 to 4096"},
      {"axes: {batch: [1.5]}\n", "f.yaml:1: batch takes integers"},
      {"axes: {batch: [[1]]}\n", "f.yaml:1: a value of axis batch must be a single value"},
      {"axes: {tp: [1]}\naxis: 3\n", "f.yaml:2: unknown key 'axis' in the experiment; did you mean 'axes'?"},
      {"axes: {tp: [1]}\nprofile: sglang-0.5.8\n",
       "f.yaml:2: profile: unknown value 'sglang-0.5.8'; did you mean 'sglang-0.5.9'?"},
      {"axes: {tp: [1]}\narch: sm120\n", "f.yaml:2: arch: unknown value 'sm120'; did you mean 'sm_120'?"},
      {"axes: {tp: [1]}\nchecks: ful\n", "did you mean 'full'?"},
      {"axes: {tp: [1]}\nstrategy: pair\n", "did you mean 'pairs'?"},
      {"axes: {tp: [1]}\nrepeats: 0\n", "f.yaml:2: repeats must be an integer from 1 to 1000"},
      {"axes: {tp: [1]}\nrepeats: 99999999999999999999999\n", "f.yaml:2: repeats must be an integer"},
      {"axes: {tp: [1]}\nseed: -1\n", "f.yaml:2: seed must be an integer from 0"},
      {"axes: {tp: [1]}\nseed: seven\n", "f.yaml:2: seed must be an integer"},
      {"axes: {tp: [1]}\nrun_unsupported: maybe\n", "f.yaml:2: run_unsupported must be true or false"},
      {"axes: {tp: [1]}\nname: ../x\n", "f.yaml:2: name may hold letters"},
      {"axes: {tp: [1]}\nname: ''\n", "f.yaml:2: name is empty"},
      {"axes: {tp: [1]}\nmodel:\n", "f.yaml:2: model must be a single value, not nothing"},
      {"axes: {tp: [1]}\ntime_limit: -5\n", "f.yaml:2: time_limit must be a number"},
      {"axes: {tp: [1]}\ntimeout: .inf\n", "f.yaml:2: timeout must be a number"},
      {"axes: {tp: [1]}\nmemory_limit: 2GB\n", "f.yaml:2: memory_limit must be from 1MiB"},
      {"axes: {tp: [1]}\nmemory_limit: 9223372036854775807GiB\n", "f.yaml:2: memory_limit must be"},
      {"axes: {tp: [1]}\nprobes: {prefil: {}}\n", "f.yaml:2: unknown key 'prefil' in probes; did you mean 'prefill'?"},
      {"axes: {tp: [1]}\nprobes:\n  prefill: {lengths: []}\n", "f.yaml:3: probes.prefill.lengths has no values"},
      {"axes: {tp: [1]}\nprobes:\n  prefill:\n    lengths: [1, 0]\n",
       "f.yaml:4: probes.prefill.lengths must be an integer from 1"},
      {"axes: {tp: [1]}\nprobes:\n  prefill: {lengths: [99999999]}\n",
       "f.yaml:3: probes.prefill.lengths must be an integer from 1 to 1048576"},
      {"axes: {tp: [1]}\nprobes:\n  decode: {context: [1]}\n",
       "f.yaml:3: unknown key 'context' in probes.decode; did you mean 'contexts'?"},
      {"axes: {tp: [1]}\nprobes:\n  decode: {steps: x}\n", "f.yaml:3: probes.decode.steps must be an integer"},
      {"axes: {tp: [1]}\nprobes:\n  sampling: {top_p: 1.5}\n",
       "f.yaml:3: probes.sampling.top_p must be a number from 0 to 1"},
      {"axes: {tp: [1]}\nprobes:\n  sampling: {top_p: 0}\n", "f.yaml:3: probes.sampling.top_p must be above 0"},
      {"axes: {tp: [1]}\nprobes:\n  sampling: {temperature: .nan}\n",
       "f.yaml:3: probes.sampling.temperature must be a number"},
      {"axes: {tp: [1]}\nprobes:\n  sequence: servr\n", "did you mean 'server'?"},
      {"axes: {tp: [1]}\nprobes: 3\n", "f.yaml:2: probes must be a map"},
      {"axes: {tp: [1]}\nexclude: {tp: 1}\n", "f.yaml:2: exclude must be a list of maps"},
      {"axes: {tp: [1]}\nexclude: [3]\n", "f.yaml:2: an exclusion must be a map"},
      {"axes: {tp: [1]}\nexclude: [{}]\n", "f.yaml:2: an exclusion must be a map"},
      {"axes: {tp: [1]}\nexclude: [{batch: 1}]\n",
       "f.yaml:2: exclude names the axis 'batch', which 'axes' does not vary"},
      {"axes: {tp: [1]}\nexclude:\n  - {tp: 2}\n", "f.yaml:3: exclude names tp=2, which 'axes' does not hold"},
      {"axes: {tp: [1]}\nplant: [a@]\n", "f.yaml:2: 'a@' is no plant"},
      {"axes: {tp: [1]}\nplant: ['@x']\n", "f.yaml:2: '@x' is no plant"},
      {"axes: {tp: [1]}\nplant: [a, a]\n", "f.yaml:2: the plant 'a' is listed twice"},
      {"axes: {tp: [1]}\nplant:\n", "f.yaml:2: plant has no values"},
      {"axes: {tp: [1]}\nshape_rules: real\n", "f.yaml:2: shape_rules: unknown value 'real'"},
      {"axes: {tp: [1]\n", "f.yaml:"},
      {"axes: {tp: [1]}\n\tname: x\n", "f.yaml:2: "},
  };
  for (const Bad& bad : corpus) {
    INFO(bad.text);
    CHECK_THAT(error_of(bad.text), Contains(bad.expected));
  }
}

TEST_CASE("plants are checked against the known ones, when there are any") {
  const std::vector<std::string> known = {"late_tile", "pow2_scales"};
  CHECK(error_of("axes: {tp: [1]}\nplant: [late_tile@layers.2.mlp]\n", known) == "no error");
  CHECK_THAT(error_of("axes: {tp: [1]}\nplant:\n  - late_tyle\n", known),
             Contains("f.yaml:3: unknown plant 'late_tyle'; did you mean 'late_tile'?"));
  CHECK(error_of("axes: {tp: [1]}\nplant: [anything]\n") == "no error");
  CHECK(split_plant("a@b@c") == std::make_pair(std::string("a"), std::string("b@c")));
  CHECK(split_plant("a") == std::make_pair(std::string("a"), std::string()));
}

TEST_CASE("default probes stand on both sides of a page and of top-k, within the model's positions") {
  Probes full;
  fill_probe_defaults(full, 64, 2048, 202752);
  CHECK(full.prefill_lengths == std::vector<int64_t>{1, 63, 64, 65, 2048, 2049});
  CHECK(full.prefill_chunk == 512);
  CHECK(full.decode_contexts == std::vector<int64_t>{63, 2047, 4096});
  CHECK(full.decode_batch == std::vector<int64_t>{1, 3, 8});
  CHECK(full.decode_steps == 4);

  Probes tiny;
  fill_probe_defaults(tiny, 64, 16, 512);
  CHECK(tiny.prefill_lengths == std::vector<int64_t>{1, 16, 17, 63, 64, 65});
  CHECK(tiny.decode_contexts == std::vector<int64_t>{15, 32, 63});

  Probes short_model;
  fill_probe_defaults(short_model, 64, 2048, 70);
  CHECK(short_model.prefill_lengths.back() == 70);
  CHECK(short_model.longest_context() <= 70);

  Probes given;
  given.prefill_lengths = {5};
  given.prefill_chunk = 0;
  given.decode_batch = {2};
  fill_probe_defaults(given, 64, 16, 512);
  CHECK(given.prefill_lengths == std::vector<int64_t>{5});
  CHECK(given.prefill_chunk == 0);
  CHECK(given.decode_batch == std::vector<int64_t>{2});
}

TEST_CASE("rows can be listed instead of a product, and read back the same") {
  const std::string_view text =
      "server_args: '--attention-backend \"triton\"'\n"
      "rows:\n"
      "  - {attention_backend: triton, kv_cache_dtype: fp8_e4m3}\n"
      "  - {attention_backend: nsa}\n"
      "  - {kv_cache_dtype: bfloat16, tp: 8}\n";
  const auto e = parse_experiment(text, "f.yaml");
  REQUIRE(e);
  REQUIRE(e->rows.size() == 3);
  CHECK(e->rows[1] == AxisValues{{"attention_backend", "nsa"}, {"kv_cache_dtype", "auto"}, {"tp", "1"}});
  CHECK(e->rows[2].at("kv_cache_dtype") == "bf16");
  REQUIRE(e->axes.size() == 3);
  CHECK(e->axes[0].values == std::vector<std::string>{"triton", "nsa", "auto"});
  const auto again = parse_experiment(write_experiment(*e), "again.yaml");
  REQUIRE(again);
  CHECK(again->rows == e->rows);
  CHECK(again->server_args == "--attention-backend \"triton\"");
  CHECK(write_experiment(*again) == write_experiment(*e));

  CHECK_FALSE(parse_experiment("rows: []\n", "f.yaml"));
  CHECK_FALSE(parse_experiment("rows: {tp: 8}\n", "f.yaml"));
  CHECK_FALSE(parse_experiment("rows:\n  - {tp: [4, 8]}\n", "f.yaml"));
  CHECK_FALSE(parse_experiment("axes: {tp: [8]}\nrows:\n  - {tp: 8}\n", "f.yaml"));
  const auto twice = parse_experiment("rows:\n  - {tp: 8}\n  - {tp: 08}\n", "f.yaml");
  REQUIRE_FALSE(twice);
  CHECK_THAT(twice.error().message, Contains("f.yaml:3: the same row is listed twice"));
}

TEST_CASE("a missing file is bad input that names it") {
  const auto missing = load_experiment("/nonexistent/e.yaml");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().kind == ErrorKind::kBadInput);
  CHECK_THAT(missing.error().message, Contains("/nonexistent/e.yaml"));
}

}  // namespace faultline
