// Bugs that a build plants on purpose, so that the simulation proves that it would find them.
//
//   if (!CKV_PLANTED_BUG("epoch") && header.epoch != epoch.value) return Refuse();
//
// With the CMake option CKV_PLANTED, ckv_sim --plant epoch makes the condition above false. Any
// other build has the constant false there (tests/sim/README.md).

#pragma once

#ifdef CKV_PLANTED

#include <string>
#include <string_view>

namespace ckv {

// The name of the bug that is there, or empty. Set it before the first thread starts.
inline std::string& PlantedBug() {
  static std::string name;
  return name;
}

}  // namespace ckv

#define CKV_PLANTED_BUG(name) (::ckv::PlantedBug() == (name))

#else

#define CKV_PLANTED_BUG(name) false

#endif
