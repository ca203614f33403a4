// Converts arbitrary bytes to valid UTF-8 text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckv {

struct Utf8Character {
  uint32_t code = 0;
  size_t byte_count = 1;
  bool valid = false;  // if false, this is one byte that is not UTF-8
};

// Returns the first character of `text`, which must not be empty.
Utf8Character FirstCharacterOf(std::string_view text);

// Returns `text` with a '?' for each byte that is not UTF-8, cut before the first character that
// would exceed `bytes_max`. Protobuf needs this: a receiver rejects the whole message if a string
// is not UTF-8. Paths, and errors that name them, may contain any bytes.
std::string Utf8Text(std::string_view text, size_t bytes_max);

}  // namespace ckv
