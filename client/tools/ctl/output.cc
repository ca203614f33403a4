// Formats results for people and programs. A Table that is wider than the terminal is printed as
// several tables, each of which begins with the key columns. All text of members is made printable
// first, because it may contain control characters. The functions at the end format counts, bytes,
// rates and times.

#include "client/tools/ctl/output.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

std::atomic<size_t> table_columns{kTerminalColumns};

}  // namespace

void SetTableColumns(size_t columns) { table_columns = columns; }

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  CKV_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  return widths;
}

std::string Table::RenderColumns(const std::vector<size_t>& shown,
                                 const std::vector<size_t>& widths) const {
  std::string text;
  const auto cell = [&](const std::string& value, size_t c) {
    const std::string padding(widths[c] - value.size(), ' ');
    const bool last = c == shown.back();
    text += columns_[c].right ? padding + value : value + (last ? "" : padding);
    text += last ? "\n" : "  ";
  };
  for (const size_t c : shown) cell(columns_[c].title, c);
  for (const auto& row : rows_) {
    for (const size_t c : shown) cell(row[c], c);
  }
  return text;
}

std::string Table::Render() const {
  if (rows_.empty()) return "";
  const std::vector<size_t> widths = Widths();
  std::string text;
  std::vector<size_t> keys = {0};
  size_t keys_width = widths[0];
  for (size_t c = 1; c < columns_.size() && columns_[c].key; ++c) {
    keys.push_back(c);
    keys_width += 2 + widths[c];
  }
  std::vector<size_t> shown = keys;
  size_t used = keys_width;
  for (size_t c = keys.size(); c < columns_.size(); ++c) {
    // A column that is too wide by itself has a table of its own, and is too wide there.
    if (used + 2 + widths[c] > table_columns && shown.size() > keys.size()) {
      text += RenderColumns(shown, widths) + "\n";
      shown = keys;
      used = keys_width;
    }
    shown.push_back(c);
    used += 2 + widths[c];
  }
  return text + RenderColumns(shown, widths);
}

std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : fields) {
    text += name + ":" + std::string(width - name.size() + 1, ' ') + Printable(value) + "\n";
  }
  return text;
}

std::string Printable(std::string_view text) {
  std::string out(text);
  absl::StrReplaceAll({{"\n  ", "; "}}, &out);
  out = PrintableLines(out);
  std::replace(out.begin(), out.end(), '\n', '?');
  return out;
}

std::string PrintableLines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    // U+0080 to U+009F are control characters, too: U+009B begins a sequence as ESC [ does.
    const bool upper = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    const bool lower = (byte < 0x20 && byte != '\n') || byte == 0x7f;
    out += upper || lower ? '?' : text[i];
    if (upper) ++i;
  }
  return out;
}

std::string FormatCount(uint64_t count, std::string_view noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatRate(double bytes_per_s) {
  return FormatBytes(static_cast<uint64_t>(std::max(0.0, bytes_per_s))) + "/s";
}

std::string FormatDuration(Duration duration) {
  const double us = static_cast<double>(duration.count()) / 1e3;
  if (us < 1e3) return absl::StrFormat("%.0f us", us);
  if (us < 1e6) return absl::StrFormat("%.0f ms", us / 1e3);
  if (us < 60e6) return absl::StrFormat("%.1f s", us / 1e6);
  const auto seconds = static_cast<int64_t>(us / 1e6);
  return absl::StrFormat("%d min %02d s", seconds / 60, seconds % 60);
}

std::string FormatAge(Duration age) {
  const int64_t seconds = std::max<int64_t>(0, age.count() / 1'000'000'000);
  if (seconds < 120) return absl::StrFormat("%d s", seconds);
  if (seconds < 120 * 60) return absl::StrFormat("%d min", seconds / 60);
  if (seconds < 48 * 3600) return absl::StrFormat("%d h", seconds / 3600);
  return absl::StrFormat("%d d", seconds / 86'400);
}

std::string FormatMicroseconds(double microseconds) {
  if (microseconds > 0 && microseconds < 0.1) return absl::StrFormat("%.3g ns", microseconds * 1e3);
  if (microseconds < 1e3) return absl::StrFormat("%.1f us", microseconds);
  if (microseconds < 1e6) return absl::StrFormat("%.2f ms", microseconds / 1e3);
  return absl::StrFormat("%.2f s", microseconds / 1e6);
}

double ShortestDouble(float value) {
  std::array<char, 32> digits;
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  double shortest = value;
  std::from_chars(digits.data(), written.ptr, shortest);
  return shortest;
}

std::string RenderJson(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ckv::ctl
