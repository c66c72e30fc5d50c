#include "grid/plant_spec.h"

namespace faultline {

std::vector<std::string> faults_of(std::string_view plant) {
  std::vector<std::string> faults;
  while (true) {
    const size_t end = plant.find('+');
    faults.emplace_back(plant.substr(0, end));
    if (end == std::string_view::npos) return faults;
    plant.remove_prefix(end + 1);
  }
}

}  // namespace faultline
