// Where a store keeps a chunk, and how a test damages it.

#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/status.h"
#include "proto/ids.h"

namespace ckv::test {

// The file of chunk `id` in a store's folder.
inline std::string ChunkFileOf(const std::string& store_path, const ChunkId& id) {
  const std::string hex = id.ToHex();
  return absl::StrCat(store_path, "/chunks/", hex.substr(0, 2), "/", hex.substr(2, 1), "/", hex);
}

// Flips the bits of `mask` in one byte of a file; a negative offset counts from its end.
inline void FlipBits(const std::string& path, int64_t offset, int mask = 1) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto from = offset < 0 ? std::ios::end : std::ios::beg;
  file.seekg(offset, from);
  const int byte = file.get();
  file.seekp(offset, from);
  file.put(static_cast<char>(byte ^ mask));
  file.close();
  CKV_CHECK(byte >= 0 && file.good());
}

}  // namespace ckv::test
