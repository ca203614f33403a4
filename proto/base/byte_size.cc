#include "proto/base/byte_size.h"

#include <charconv>
#include <system_error>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

struct Suffix {
  std::string_view name;
  unsigned shift;
};
constexpr Suffix kSuffixes[] = {{"", 0},     {"B", 0},    {"KiB", 10},
                                {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};

absl::Status RefuseSize(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not %s", text, expected));
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  constexpr std::string_view kExpected = "a size: a number and B, KiB, MiB, GiB or TiB";
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return RefuseSize(text, kExpected);
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const Suffix& suffix : kSuffixes) {
    if (rest != suffix.name) continue;
    const uint64_t bytes = number << suffix.shift;
    if (bytes >> suffix.shift != number) return RefuseSize(text, "in range");
    return bytes;
  }
  return RefuseSize(text, kExpected);
}

}  // namespace ckv
