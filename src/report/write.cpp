#include "report/write.h"

#include "base/file.h"
#include "report/compose.h"
#include "report/html.h"
#include "report/json.h"
#include "report/junit.h"
#include "report/markdown.h"

namespace faultline {

Status write_reports(const Findings& findings, const std::string& directory) {
  const Document document = compose(findings);
  // findings.json first: the others can be made again from it.
  FAULTLINE_TRY_STATUS(write_file(directory + "/findings.json", findings_json(findings)));
  FAULTLINE_TRY_STATUS(write_file(directory + "/FINDINGS.md", render_markdown(document)));
  FAULTLINE_TRY_STATUS(write_file(directory + "/findings.html", render_html(document)));
  return write_file(directory + "/junit.xml", findings_junit(findings));
}

}  // namespace faultline
