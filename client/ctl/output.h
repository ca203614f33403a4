// Prints for ckvctl: tables for people, JSON for programs, and numbers with their units.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/base/clock.h"

namespace ckv::ctl {

using Json = nlohmann::ordered_json;

enum class OutputFormat { kTable, kJson };

// The width of a terminal that nobody has widened.
inline constexpr size_t kTerminalColumns = 80;

// Sets the room for tables of this process, kTerminalColumns until then.
void SetTableColumns(size_t columns);
size_t TableColumns();

// Columns as wide as their widest cell, two spaces between; the last is not padded. A table wider
// than the room is several, one below the other. Each begins with the columns that name a row: the
// first, and those marked as keys.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // numbers
    bool key = false;    // stands next to the first column, or to other keys
  };
  explicit Table(std::vector<Column> columns);

  // As many cells as columns. Control characters, which a peer may have sent, become '?'.
  void AddRow(std::vector<std::string> cells);
  size_t row_count() const { return rows_.size(); }

  // With a line for the titles; "" for a table without rows.
  std::string Render() const;

 private:
  std::vector<size_t> Widths() const;
  std::string RenderColumns(const std::vector<size_t>& shown,
                            const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "name: value" lines, values aligned.
std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields);

// The text in one line, an error's hint after a semicolon, and with control characters as '?':
// nothing a peer sends moves the terminal's cursor.
std::string Printable(std::string_view text);
// The same for a text of several lines, which stay.
std::string PrintableLines(std::string_view text);

std::string FormatCount(uint64_t count, std::string_view noun);  // "1 chunk", "2 chunks"
std::string FormatBytes(uint64_t bytes);                         // "0 B", "1.5 KiB", "63.7 MiB"
std::string FormatRate(double bytes_per_s);                      // "1.2 GiB/s"
std::string FormatDuration(Duration duration);        // "850 us", "12 ms", "3.4 s", "2 min 05 s"
std::string FormatAge(Duration age);                  // "42 s", "3 min", "5 h", "12 d"
std::string FormatMicroseconds(double microseconds);  // "0.8 us", "12.3 ms"

// The double with the fewest digits that is `value` as a float: 0.1147 and not
// 0.11469999700784683.
double ShortestDouble(float value);

// Two-space indented, ends with a newline. Bytes that are not UTF-8 are replaced.
std::string RenderJson(const Json& json);

}  // namespace ckv::ctl
