// Numbers of llama.cpp's state files that the reader and the writer share.

#pragma once

#include <bit>
#include <cstdint>

namespace ckv {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kLlamaFileMagic = 0x67677371;     // "ggsq"
inline constexpr uint32_t kLlamaSessionMagic = 0x6767736e;  // "ggsn"
inline constexpr uint32_t kLlamaDataMagic = 0xaf143cd8;

}  // namespace ckv
