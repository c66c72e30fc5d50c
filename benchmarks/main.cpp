#include "bench.h"

int main() {
  faultline::bench::products();
  return 0;
}
