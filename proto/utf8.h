// Turns any bytes into text that is UTF-8.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ckv {

struct Utf8Character {
  uint32_t code = 0;
  size_t byte_count = 1;
  bool valid = false;  // if false, it is one byte that is no UTF-8
};

// Returns the first character of `text`, which is not empty.
Utf8Character FirstCharacterOf(std::string_view text);

// Returns `text` with a '?' for each byte that is no UTF-8, cut before the character that goes past
// `bytes_max`. Protobuf needs it: the reader of a string with other bytes refuses the whole
// message. Paths and errors that name them may have any byte.
std::string Utf8Text(std::string_view text, size_t bytes_max);

}  // namespace ckv
