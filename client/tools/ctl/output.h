// Formats the output of ckvctl: tables for people, JSON for programs, and numbers with units.

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

// The default width of a terminal.
inline constexpr size_t kTerminalColumns = 80;

// Sets the width available to this process's tables; kTerminalColumns until then.
void SetTableColumns(size_t columns);

// A table whose columns are as wide as their widest cell, with two spaces between them; the last is
// not padded. A table wider than that is split into several, one below the other. Each
// begins with the columns that name a row: the first, and those marked as keys.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // right-aligned, for numbers
    bool key = false;    // must be adjacent to the first column or another key
  };
  explicit Table(std::vector<Column> columns);

  // Adds a row with one cell per column. Control characters, which a peer may have sent, are
  // replaced by '?'.
  void AddRow(std::vector<std::string> cells);
  size_t row_count() const { return rows_.size(); }

  // Returns the table with a line of titles; "" if it has no rows.
  std::string Render() const;

 private:
  std::vector<size_t> Widths() const;
  std::string RenderColumns(const std::vector<size_t>& shown,
                            const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns "name: value" lines with aligned values.
std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields);

// Returns the text as one line, with an error's hint after a semicolon and control characters as
// '?'. So no text from a peer can move the terminal's cursor.
std::string Printable(std::string_view text);
// The same for a text of several lines; keeps the line breaks.
std::string PrintableLines(std::string_view text);

std::string FormatCount(uint64_t count, std::string_view noun);  // "1 chunk", "2 chunks"
std::string FormatBytes(uint64_t bytes);                         // "0 B", "1.5 KiB", "63.7 MiB"
std::string FormatRate(double bytes_per_s);                      // "1.2 GiB/s"
std::string FormatDuration(Duration duration);        // "850 us", "12 ms", "3.4 s", "2 min 05 s"
std::string FormatAge(Duration age);                  // "42 s", "3 min", "5 h", "12 d"
std::string FormatMicroseconds(double microseconds);  // "0.8 us", "12.3 ms"

// Returns the double with the fewest digits that equals `value` as a float: 0.1147, not
// 0.11469999700784683.
double ShortestDouble(float value);

// Returns JSON indented by two spaces, with a final newline. Bytes that are not UTF-8 are replaced.
std::string RenderJson(const Json& json);

}  // namespace ckv::ctl
