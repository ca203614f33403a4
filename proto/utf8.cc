#include "proto/utf8.h"

namespace ckv {

Utf8Character FirstCharacterOf(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {lead, 1, true};
  const size_t count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < count) return {};
  uint32_t code = lead & (0x7fu >> count);
  for (size_t i = 1; i < count; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3f);
  }
  const bool too_long = (count == 3 && code < 0x800) || (count == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (too_long || surrogate || code > 0x10ffff) return {};
  return {code, count, true};
}

std::string Utf8Text(std::string_view text, size_t bytes_max) {
  std::string valid;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacterOf(text);
    if (valid.size() + character.byte_count > bytes_max) break;
    if (character.valid) {
      valid += text.substr(0, character.byte_count);
    } else {
      valid += '?';
    }
    text.remove_prefix(character.byte_count);
  }
  return valid;
}

}  // namespace ckv
