#include "grid/secrets.h"

#include "grid/experiment.h"
#include "grid/server_args.h"
#include "testing.h"

namespace faultline {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("secrets on a line are replaced, in every spelling, and nothing else is") {
  const std::pair<const char*, const char*> lines[] = {
      {"--api-key s3cret --tp 8", "--api-key REDACTED --tp 8"},
      {"--api-key=s3cret --tp 8", "--api-key=REDACTED --tp 8"},
      {"--admin-api-key 's3 cret' \\\n  --tp 8", "--admin-api-key REDACTED \\\n  --tp 8"},
      {"--api_key s3cret", "--api_key REDACTED"},
      {"--api-k \"s3cret\"", "--api-k REDACTED"},
      {"\"--api-key=s3cret\"", "--api-key=REDACTED"},
      {"--ssl-keyfile-password s3cret --ssl-keyfile a.pem", "--ssl-keyfile-password REDACTED --ssl-keyfile a.pem"},
      {"HF_TOKEN=s3cret NCCL_DEBUG=INFO sglang serve --tp 8", "HF_TOKEN=REDACTED NCCL_DEBUG=INFO sglang serve --tp 8"},
      {"docker run -e OPENAI_API_KEY='s3cret' --env=AWS_SECRET_ACCESS_KEY=s3cret img sglang serve",
       "docker run -e OPENAI_API_KEY=REDACTED --env=AWS_SECRET_ACCESS_KEY=REDACTED img sglang serve"},
      {"docker login --password s3cret", "docker login --password REDACTED"},
      {"--served-model-name hf_abcdefghijklmnopqrst", "--served-model-name REDACTED"},
      // No secrets: a variable that only the shell knows, names that only look alike, a flag without its value.
      {"--api-key $KEY", "--api-key $KEY"},
      {"--max-total-tokens 4096 --tokenizer-path x --speculative-token-map m",
       "--max-total-tokens 4096 --tokenizer-path x --speculative-token-map m"},
      {"--kt-max-deferred-experts-per-token 2", "--kt-max-deferred-experts-per-token 2"},
      {"--api-key --tp 8", "--api-key --tp 8"},
      {"--served-model-name sk-glm", "--served-model-name sk-glm"},
  };
  for (const auto& [given, expected] : lines) {
    INFO(given);
    CHECK(redacted_line(given) == expected);
    CHECK(redacted_line(expected) == expected);
  }
  CHECK(redacted_line("--api-key 's3cret") == "REDACTED");
}

TEST_CASE("what is read of a line holds no secret") {
  const Profile& profile = *find_profile(kDefaultProfile);
  const auto line = parse_server_args("HF_TOKEN=s3cret sglang serve --api-key s3cret --admin-api-key=s3cret", profile);
  REQUIRE(line);
  std::string all;
  for (const auto* list : {&line->kept, &line->environment, &line->notes})
    for (const std::string& text : *list) all += text + "\n";
  for (const auto* list : {&line->ignored, &line->unmodelled, &line->refused})
    for (const FlagMention& entry : *list) all += entry.words + " " + entry.why + "\n";
  CHECK_THAT(all, !Contains("s3cret") && Contains("--api-key") && Contains("REDACTED"));
}

TEST_CASE("an experiment's line is read without its secrets") {
  const auto experiment = parse_experiment("server_args: --api-key s3cret --tp 8\nrows:\n  - {tp: 1}\n", "x.yaml", {});
  if (!experiment) FAIL(experiment.error().message);
  CHECK(experiment->server_args == "--api-key REDACTED --tp 8");
}

}  // namespace faultline
