#include "device/device.h"
#include "testing.h"

using namespace faultline;

TEST_CASE("a buffer is zero, aligned, and its canaries are whole") {
  const auto device = make_cpu_device();
  const auto buffer = device->allocate(100);
  REQUIRE(buffer);
  CHECK((*buffer)->bytes() == 100);
  CHECK(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64 == 0);
  for (size_t i = 0; i < 100; ++i) REQUIRE((*buffer)->data()[i] == std::byte{0});
  int64_t offset = 0;
  CHECK_FALSE((*buffer)->canary_broken(offset));
}

TEST_CASE("writes up to the last byte leave the canaries whole") {
  const auto device = make_cpu_device();
  const auto buffer = device->allocate(100);
  REQUIRE(buffer);
  for (size_t i = 0; i < 100; ++i) (*buffer)->data()[i] = std::byte{0xFF};
  int64_t offset = 0;
  CHECK_FALSE((*buffer)->canary_broken(offset));
}

TEST_CASE("a write past either end breaks a canary and says where") {
  const auto device = make_cpu_device();
  const auto buffer = device->allocate(100);
  REQUIRE(buffer);
  int64_t offset = 0;
  SECTION("behind") {
    (*buffer)->data()[102] = std::byte{1};
    REQUIRE((*buffer)->canary_broken(offset));
    CHECK(offset == 102);
  }
  SECTION("in front") {
    (*buffer)->data()[-3] = std::byte{1};
    REQUIRE((*buffer)->canary_broken(offset));
    CHECK(offset == -3);
  }
}
