#include "client/tools/ctl/doctor/host_files.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace ckv::ctl::doctor {
namespace {

constexpr size_t kListedMax = 4096;  // processors, as the kernel's own limit is 8192

std::string Joined(const std::string& root, std::string_view path) {
  return root + std::string(path);
}

}  // namespace

std::optional<uint64_t> LeadingNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

std::vector<uint32_t> ListedNumbers(std::string_view text) {
  std::vector<uint32_t> numbers;
  for (const auto& part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::string_view range(part.data(), part.size());
    const auto first = LeadingNumber(range);
    if (!first) continue;
    const size_t dash = range.find('-');
    const auto last =
        dash == std::string_view::npos ? first : LeadingNumber(range.substr(dash + 1));
    for (uint64_t n = *first; last && n <= *last && numbers.size() < kListedMax; ++n)
      numbers.push_back(static_cast<uint32_t>(n));
  }
  return numbers;
}

std::optional<std::string> HostFiles::Read(std::string_view path) const {
  // The size of a file of /proc is 0 or wrong, so the file is read to its end.
  std::FILE* const file = std::fopen(Joined(root_, path).c_str(), "re");
  if (file == nullptr) return std::nullopt;
  std::string text, piece(1 << 16, '\0');
  while (text.size() < kHostFileBytesMax) {
    const size_t got = std::fread(piece.data(), 1, piece.size(), file);
    text.append(piece, 0, got);
    if (got < piece.size()) break;
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return std::nullopt;
  text.resize(std::min(text.size(), kHostFileBytesMax));
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

std::optional<std::string> HostFiles::ReadLine(std::string_view path, std::string_view key) const {
  const auto text = Read(path);
  if (!text) return std::nullopt;
  for (const auto& line : absl::StrSplit(*text, '\n')) {
    std::string_view rest(line.data(), line.size());
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    std::string value(rest);
    absl::StripAsciiWhitespace(&value);
    return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> HostFiles::ReadField(std::string_view path, std::string_view key) const {
  const auto line = ReadLine(path, key);
  return line ? LeadingNumber(*line) : std::nullopt;
}

std::vector<std::string> HostFiles::List(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(Joined(root_, path), error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> HostFiles::Link(std::string_view path) const {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(Joined(root_, path), error);
  if (error) return std::nullopt;
  return target.string();
}

}  // namespace ckv::ctl::doctor
