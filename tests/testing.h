// One include for both generations of Catch2 that Debian ships.
#pragma once
#ifdef FAULTLINE_CATCH2_V2
#include <catch2/catch.hpp>
#else
#include <catch2/catch_all.hpp>
using namespace Catch;
#endif
