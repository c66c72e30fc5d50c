// The texts are what cuda-gdb, cuobjdump and nvdisasm 13.0 print, shortened.
#include "bisect/code_lines.h"

#include <cstdlib>
#include <fstream>

#include "temporary_folder.h"
#include "testing.h"

using namespace faultline;

namespace {

const std::string kSaid =
    "CUDA Exception: Warp Illegal Address\n"
    "No line number information available for address 0x7f9638e7adc0 <_ZN1p4loadEPc+192>\n"
    "*   0  0000:00:08.0 NVIDIA H200 GH100-A sm_90 132 4 64 32 255\n";

const char* const kListing = R"(//--------------------- .text._ZN1p4loadEPcx --------------------------
.text._ZN1p4loadEPcx:
	//## File "/x/other.cu", line 7
        /*00c0*/                   LDC R1, c[0x0][0x28] ;
//--------------------- .text._ZN1p4loadEPc --------------------------
_ZN1p4loadEPc:
.text._ZN1p4loadEPc:
	//## File "/x/src/probe/faults.cu", line 38
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/x/src/probe/faults.cu", line 40
        /*00b0*/                   ULDC.64 UR4, c[0x0][0x210] ;
        /*00c0*/                   LDG.E R0, desc[UR4][R2.64] ;
//--------------------- .nv.info --------------------------
        /*00d0*/                   EXIT ;
)";

}  // namespace

TEST_CASE("cuda-gdb names an address without a line by symbol, offset and architecture") {
  const auto address = code_address(kSaid);
  REQUIRE(address);
  CHECK(address->symbol == "_ZN1p4loadEPc");
  CHECK(address->offset == 192);
  CHECK(address->arch == "sm_90");
}

TEST_CASE("an address is taken only whole") {
  CHECK_FALSE(code_address(""));
  CHECK_FALSE(code_address("Line 20 of \"/x/faults.cu\" starts at address 0x7f <_Z1fv+80>\n 0 sm_90\n"));
  const std::string said = "No line number information available for address 0x7f9638e7adc0 ";
  CHECK_FALSE(code_address(said + "<_Z1fv+192>\n"));  // no architecture
  CHECK_FALSE(code_address(said + "<_Z1fv>\n* 0 sm_90\n"));
  CHECK_FALSE(code_address(said + "<_Z1fv+>\n* 0 sm_90\n"));
  CHECK_FALSE(code_address(said + "<$(touch x)+1>\n* 0 sm_90\n"));
  CHECK_FALSE(code_address(said + "<-e+1>\n* 0 sm_90\n"));
}

TEST_CASE("the line of an instruction stands above it, in its own function") {
  const TemporaryFolder folder;
  const std::string listing = folder.file("listing", kListing);
  const auto line = line_in_listing(listing, {"_ZN1p4loadEPc", 192, "sm_90"});
  REQUIRE(line);
  CHECK(line->file == "/x/src/probe/faults.cu");
  CHECK(line->line == 40);
  CHECK(line_in_listing(listing, {"_ZN1p4loadEPc", 0, "sm_90"})->line == 38);
  CHECK_FALSE(line_in_listing(listing, {"_ZN1p4loadEPc", 0xd0, "sm_90"}));  // of the next section
  CHECK_FALSE(line_in_listing(listing, {"_ZN1p4loadEP", 192, "sm_90"}));
  CHECK_FALSE(line_in_listing(folder.path + "/none", {"_ZN1p4loadEPc", 192, "sm_90"}));
}

TEST_CASE("the tools are run on the code for the device's architecture that has the symbol") {
  const TemporaryFolder folder;
  const auto tool = [&](const char* name, const std::string& text, const char* variable) {
    const std::string path = folder.file(name, "#!/bin/sh\n" + text, true);
    ::setenv(variable, path.c_str(), 1);
  };
  folder.file("listing.txt", kListing);
  tool("extract",
       "echo _Z1fv >a.sm_90.cubin; echo _ZN1p4loadEPc >b.sm_90.cubin; echo $2 $3 >" + folder.path + "/asked\n",
       "CUOBJDUMP");
  tool("list", "[ \"$3\" = b.sm_90.cubin ] && cat " + folder.path + "/listing.txt\n", "NVDISASM");
  const RunScript shell = [](const std::string& script, const std::vector<std::string>& arguments) {
    std::string command = "sh -c '" + script + "' sh";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    return std::system(command.c_str()) == 0;
  };
  const auto line = source_of({"_ZN1p4loadEPc", 192, "sm_90"}, "/x/program", shell);
  const auto absent = source_of({"_ZN1p5otherEPc", 192, "sm_90"}, "/x/program", shell);
  ::setenv("NVDISASM", "/nonexistent/nvdisasm", 1);
  const auto without_tool = source_of({"_ZN1p4loadEPc", 192, "sm_90"}, "/x/program", shell);
  ::unsetenv("CUOBJDUMP");
  ::unsetenv("NVDISASM");
  REQUIRE(line);
  CHECK(line->line == 40);
  std::string asked;
  std::getline(std::ifstream(folder.path + "/asked"), asked);
  CHECK(asked == "sm_90 /x/program");
  CHECK_FALSE(absent);
  CHECK_FALSE(without_tool);
}
