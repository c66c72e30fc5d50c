// The five lines that answer a run: what fails, the smallest combination, the first broken contract, what does not
// matter, what to do.
#pragma once

#include <string>
#include <vector>

#include "report/document.h"
#include "report/findings.h"

namespace faultline {

struct AnswerLine {
  std::string label;  // "Fails"
  Text text;
};

// Always five, and before them one on the server's command line where the run was made from one. They speak of the
// unplanted run; of the planted ones only where nothing else fails, and then say so.
std::vector<AnswerLine> answer_lines(const Findings& findings);

// The same for a terminal: "Fails: …".
std::vector<std::string> five_line_answer(const Findings& findings);

}  // namespace faultline
