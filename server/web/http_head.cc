#include "server/web/http_head.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"

namespace ckv {
namespace {

constexpr size_t kQueryValueBytesMax = 1024;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Returns nothing if an escape is malformed or encodes NUL.
std::optional<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_space) c = ' ';
    if (c == '%') {
      if (text.size() - i < 3) return std::nullopt;
      const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return std::nullopt;
    decoded += c;
  }
  return decoded;
}

// Removes the text before `end`, and `end` itself, from `text`. Returns the text before `end`.
std::string_view CutTo(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view cut = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return cut;
}

}  // namespace

bool HttpHeadIsWhole(std::string_view bytes) {
  return bytes.find("\r\n\r\n") != std::string_view::npos ||
         bytes.find("\n\n") != std::string_view::npos;
}

absl::StatusOr<HttpHead> ParseHttpHead(std::string_view bytes) {
  std::string_view line = bytes.substr(0, bytes.find('\n'));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::string_view method = CutTo(line, ' ');
  std::string_view target = CutTo(line, ' ');
  const bool is_word =
      std::all_of(method.begin(), method.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  if (method.empty() || !is_word || !line.starts_with("HTTP/1.") || line.size() != 8)
    return absl::InvalidArgumentError("no HTTP/1 request");
  // A proxy also names the host.
  if (target.starts_with("http://")) {
    target.remove_prefix(7);
    target.remove_prefix(std::min(target.find('/'), target.size()));
  }
  const std::string_view path = CutTo(target, '?');
  std::optional<std::string> decoded = Decode(path, /*plus_is_space=*/false);
  if (!decoded || !decoded->starts_with('/'))
    return absl::InvalidArgumentError("a path that is not well-formed");
  return HttpHead{std::string(method), *std::move(decoded), std::string(target)};
}

std::string QueryValue(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    std::string_view pair = CutTo(query, '&');
    if (CutTo(pair, '=') != key) continue;
    const std::optional<std::string> value = Decode(pair, /*plus_is_space=*/true);
    return value && value->size() <= kQueryValueBytesMax ? *value : "";
  }
  return "";
}

}  // namespace ckv
