#include "engine/request_pool.h"

#include <set>

#include "testing.h"

using namespace faultline;

namespace {

struct Pool {
  PoolShape shape{256, 64, 3, 128};
  std::vector<int32_t> memory = std::vector<int32_t>(3 * 128, -7);
  TensorView table = make_view(memory.data(), Dtype::kI32, {3, 128});
  RequestPool pool{shape, table, 7};
};

}  // namespace

TEST_CASE("requests get pages of their own, never the dummy page") {
  Pool p;
  std::set<int64_t> slots;
  for (int i = 0; i < 3; ++i) {
    const auto request = p.pool.admit();
    REQUIRE(request);
    REQUIRE(p.pool.grow(*request, 60));
    for (int64_t position = 0; position < 60; ++position) {
      const int64_t slot = p.table.load_index(p.table.offset(*request, position));
      CHECK(slot >= p.shape.page_size);
      CHECK(slot < p.shape.slots);
      CHECK(slots.insert(slot).second);
    }
  }
}

TEST_CASE("a pool that is full, a context that is too long and a request too many are errors with numbers") {
  Pool p;
  const auto first = p.pool.admit();
  REQUIRE(p.pool.grow(*first, 128));
  const auto second = p.pool.admit();
  const auto full = p.pool.grow(*second, 65);
  REQUIRE_FALSE(full);
  CHECK(full.error().message.find("256") != std::string::npos);
  const auto longer = p.pool.grow(*first, 129);
  REQUIRE_FALSE(longer);
  CHECK(longer.error().message.find("129") != std::string::npos);
  REQUIRE(p.pool.admit());
  CHECK_FALSE(p.pool.admit());
}

TEST_CASE("released pages are used again, and the row keeps its stale slots") {
  Pool p;
  const auto first = p.pool.admit();
  REQUIRE(p.pool.grow(*first, 128));
  const int64_t stale = p.table.load_index(0);
  p.pool.release(*first);
  CHECK(p.table.load_index(0) == stale);
  const auto again = p.pool.admit();
  REQUIRE(again);
  CHECK(p.pool.grow(*again, 128));
}

TEST_CASE("high placement gives the pages with the highest numbers, also after some came back") {
  Pool p;
  RequestPool pool(p.shape, p.table, 7, SlotPlacement::kHigh);
  const auto first = pool.admit();
  REQUIRE(pool.grow(*first, 65));
  CHECK(pool.slot(*first, 0) == 192);
  CHECK(pool.slot(*first, 63) == 255);
  CHECK(pool.slot(*first, 64) == 128);
  const auto second = pool.admit();
  REQUIRE(pool.grow(*second, 1));
  CHECK(pool.slot(*second, 0) == 64);
  pool.release(*first);
  pool.release(*second);
  const auto again = pool.admit();
  REQUIRE(pool.grow(*again, 1));
  CHECK(pool.slot(*again, 0) == 192);
}
