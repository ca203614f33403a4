// Random numbers of a simulation: the same on every machine for the same seed.

#pragma once

#include <cmath>
#include <cstdint>

namespace ckv {

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). The
// distributions of the standard library differ between libraries, so these are written out.
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    return Mix(state_);
  }
  // Returns a number in [0, 1).
  double Share() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Returns a number below `count`, which must be above 0.
  uint32_t Below(uint32_t count) {
    return static_cast<uint32_t>(Share() * static_cast<double>(count));
  }
  // Returns an exponentially distributed number.
  double Exponential(double mean) { return -mean * std::log1p(-Share()); }

  static uint64_t Mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace ckv
