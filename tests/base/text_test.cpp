#include "base/text.h"

#include "testing.h"

namespace faultline {

TEST_CASE("edit distance counts insertions, deletions, substitutions and swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("flashmla", "flahsmla") == 1);
}

TEST_CASE("the nearest name is found through misspelling, case and dashes") {
  const std::vector<std::string> names = {"attention_backend", "nsa_decode_backend", "nsa_prefill_backend", "tp"};
  CHECK(nearest_name("atention_backend", names) == "attention_backend");
  CHECK(nearest_name("NSA-Decode-Backend", names) == "nsa_decode_backend");
  CHECK(nearest_name("nsa_prefil_backend", names) == "nsa_prefill_backend");
  CHECK(nearest_name("pt", names) == "tp");
}

TEST_CASE("nothing is near when every name differs in more than a third") {
  const std::vector<std::string> names = {"attention_backend", "tp"};
  CHECK(nearest_name("temperature", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name(std::string(5000, 'a'), names).empty());
  CHECK(nearest_name("tp", {}).empty());
}

TEST_CASE("a suggestion names the near value, or all of them") {
  CHECK(suggestion("tritom", {"nsa", "triton"}) == "; did you mean 'triton'?");
  CHECK(suggestion("zzzzzzz", {"nsa", "triton"}) == "; valid: nsa, triton");
}

TEST_CASE("quoted input is cut and cannot steer a terminal") {
  CHECK(quotable("plain") == "plain");
  CHECK(quotable("a\x1b[31mb\n") == "a?[31mb?");
  CHECK(quotable(std::string(100, 'x'), 10) == "xxxxxxxxxx...");
}

TEST_CASE("a shell word is quoted only where it has to be") {
  CHECK(shell_word("reports/incident-1/cases/c017.yaml") == "reports/incident-1/cases/c017.yaml");
  CHECK(shell_word("c017+late_tile@x") == "c017+late_tile@x");
  CHECK(shell_word("my runs/c1") == "'my runs/c1'");
  CHECK(shell_word("a'b; rm") == "'a'\\''b; rm'");
  CHECK(shell_word("").size() == 2);
  CHECK(shell_word("é") == "'é'");
}

}  // namespace faultline
