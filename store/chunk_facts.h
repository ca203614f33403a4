// What is known of a chunk beside its file: it changes, and files do not.

#pragma once

#include <string>
#include <vector>

namespace ckv {

struct ChunkFacts {
  std::vector<std::string> readers;  // tenants; "" alone: everyone
  bool kept = false;                 // never to be evicted

  friend bool operator==(const ChunkFacts&, const ChunkFacts&) = default;
};

}  // namespace ckv
