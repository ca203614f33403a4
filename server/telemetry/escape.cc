#include "server/telemetry/escape.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "proto/utf8.h"

namespace ckv {
namespace {

// Ends a line or a terminal's state somewhere, or shows text in another order than it has.
bool IsHarmful(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

void AppendHarmful(uint32_t code, std::string& out) {
  switch (code) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += absl::StrFormat("\\u%04x", code);
  }
}

void Append(std::string_view text, bool quoted, std::string& out) {
  while (!text.empty()) {
    const Utf8Character character = FirstCharacterOf(text);
    const std::string_view bytes = text.substr(0, character.byte_count);
    text.remove_prefix(character.byte_count);
    if (!character.valid) {
      out += quoted ? "\xef\xbf\xbd" : absl::StrFormat("\\x%02x", static_cast<uint8_t>(bytes[0]));
    } else if (IsHarmful(character.code)) {
      AppendHarmful(character.code, out);
    } else {
      if (quoted && (bytes[0] == '"' || bytes[0] == '\\')) out += '\\';
      out += bytes;
    }
  }
}

}  // namespace

void AppendJsonText(std::string_view text, std::string& out) { Append(text, true, out); }

void AppendPlainText(std::string_view text, std::string& out) { Append(text, false, out); }

void AppendLogfmtValue(std::string_view text, std::string& out) {
  const bool bare = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '=' && c != '"' && c != '\\';
  });
  if (bare) {
    out += text;
    return;
  }
  out += '"';
  AppendJsonText(text, out);
  out += '"';
}

std::string_view CutText(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  // A character has at most 3 bytes behind its first; more are no UTF-8, and may be cut anywhere.
  const auto continues = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  for (int i = 0; i < 3 && end > 0 && continues(text[end]); ++i) --end;
  return text.substr(0, end);
}

}  // namespace ckv
