// The text of a plant: one fault, or several at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace faultline {

// "late_tile+wrong_rope@layer=2" as {"late_tile", "wrong_rope@layer=2"}. At least one, as it stands in the text.
std::vector<std::string> faults_of(std::string_view plant);

}  // namespace faultline
