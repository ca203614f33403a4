#include "client/ctl/top/top_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

constexpr size_t kGap = 2;            // between columns
constexpr size_t kNameMin = 8;        // width of a table's first column
constexpr size_t kNameComfort = 20;   // its width before a wide room gets more columns
constexpr size_t kTableLinesMin = 3;  // that a table keeps where there is no room
constexpr char kUnknown[] = "-";

// "9.4", "1080", "12.3k"
std::string RateText(PerSecond rate) {
  if (!rate) return kUnknown;
  const double n = *rate;
  if (n >= 999.5e9) return absl::StrFormat("%.0fT", n / 1e12);
  if (n >= 999.5e6) return absl::StrFormat("%.1fG", n / 1e9);
  if (n >= 9999.5e3) return absl::StrFormat("%.1fM", n / 1e6);
  if (n >= 9999.5) return absl::StrFormat("%.1fk", n / 1e3);
  return n >= 99.95 || n == std::floor(n) ? absl::StrFormat("%.0f", n) : absl::StrFormat("%.1f", n);
}

std::string QuantileText(const LatencyCounts& counts, double share) {
  if (counts.total() == 0) return kUnknown;
  return FormatMicroseconds(static_cast<double>(counts.Quantile(share).count()) / 1e3);
}

std::string ShareText(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.0f %%", 100 * part / whole) : kUnknown;
}

// A character a bucket: from '.' for few to '#' for the most, ' ' for none.
std::string BucketsText(const LatencyCounts& counts) {
  constexpr std::string_view kLevels = ".:-=+*#";
  const uint64_t most = *std::max_element(counts.counts.begin(), counts.counts.end());
  std::string text;
  for (const uint64_t count : counts.counts) {
    const double share = most == 0 ? 0 : static_cast<double>(count) / static_cast<double>(most);
    text += count == 0
                ? ' '
                : kLevels[static_cast<size_t>(share * static_cast<double>(kLevels.size() - 1))];
  }
  return text;
}

std::string Cut(std::string text, size_t width) {
  if (text.size() <= width) return text;
  if (width < 3) return text.substr(0, width);
  return text.substr(0, width - 2) + "..";
}

// A table whose first column takes the space that the others leave. Columns after `fixed_count` are
// shown if there is space for them.
class TopTable {
 public:
  struct Column {
    std::string title;
    size_t width = 0;
    bool left = false;
  };
  TopTable(std::string name_title, std::vector<Column> columns, size_t fixed_count)
      : name_title_(std::move(name_title)), columns_(std::move(columns)), shown_(fixed_count) {}

  // As many cells as columns, after the name. Control characters, which a peer may have sent,
  // become '?'.
  void AddRow(const std::string& name, std::vector<std::string> cells) {
    for (std::string& cell : cells) cell = Printable(cell);
    rows_.emplace_back(Printable(name), std::move(cells));
  }

  // The line of titles and one for each row.
  std::vector<std::string> Render(size_t room) const {
    size_t shown = shown_, used = 0;
    for (size_t i = 0; i < shown; ++i) used += columns_[i].width + kGap;
    while (shown < columns_.size() && used + columns_[shown].width + kGap + kNameComfort <= room)
      used += columns_[shown++].width + kGap;
    size_t longest = name_title_.size();
    for (const auto& row : rows_) longest = std::max(longest, row.first.size());
    const size_t name_room = room > used + kNameMin ? room - used : kNameMin;
    const size_t name_width = std::min(longest, name_room);
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    std::vector<std::string> lines = {Line(name_title_, titles, name_width, shown)};
    for (const auto& [name, cells] : rows_) lines.push_back(Line(name, cells, name_width, shown));
    return lines;
  }

 private:
  std::string Line(const std::string& name, const std::vector<std::string>& cells,
                   size_t name_width, size_t shown) const {
    std::string line = Cut(name, name_width);
    line.resize(name_width, ' ');
    for (size_t i = 0; i < shown; ++i) {
      const std::string cell = Cut(cells[i], columns_[i].width);
      const std::string pad(columns_[i].width - cell.size(), ' ');
      line += std::string(kGap, ' ') + (columns_[i].left ? cell + pad : pad + cell);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

  const std::string name_title_;
  const std::vector<Column> columns_;
  const size_t shown_;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows_;
};

using Lines = std::vector<std::string>;

Lines RequesterLines(const TopView& view, size_t columns) {
  TopTable table("REQUESTER",
                 {{"ROUTE/S", 7},
                  {"NEAR/S", 7},
                  {"FETCH/S", 7},
                  {"LOCAL/S", 7},
                  {"ERR/S", 6},
                  {"P50", 8},
                  {"P99", 8},
                  {"PULL/S", 7},
                  {"NEAR ROWS", 9},
                  {"OF ROOM", 7},
                  {"ADDRESS", 21, true}},
                 7);
  for (const TopRequester& r : view.requesters) {
    table.AddRow(r.name, {RateText(r.route), RateText(r.near), RateText(r.fetch), RateText(r.local),
                          RateText(r.errors), QuantileText(r.attends, .5),
                          QuantileText(r.attends, .99), RateText(r.pull), FormatBytes(r.near_bytes),
                          ShareText(double(r.near_bytes), double(r.near_bytes_max)), r.address});
  }
  return table.Render(columns);
}

Lines HolderLines(const TopView& view, size_t columns) {
  TopTable table("HOLDER",
                 {{"REQ/S", 7},
                  {"ROWS/S", 7},
                  {"BUSY", 5},
                  {"WAITING", 7},
                  {"WAIT P99", 8},
                  {"KERN P99", 8},
                  {"USED", 5},
                  {"CHUNKS", 7},
                  {"SESSIONS", 8},
                  {"ERR/S", 6},
                  {"REFUSED/S", 9},
                  {"IN", 11},
                  {"OUT", 11},
                  {"KERNEL", 11, true},
                  {"ADDRESS", 21, true}},
                 7);
  const auto bytes = [](PerSecond rate) { return rate ? FormatRate(*rate) : kUnknown; };
  for (const TopHolder& h : view.holders) {
    table.AddRow(
        h.name,
        {RateText(h.requests), RateText(h.query_rows), h.busy ? ShareText(*h.busy, 1) : kUnknown,
         std::to_string(h.waiting_count), QuantileText(h.wait, .99), QuantileText(h.kernel, .99),
         ShareText(double(h.used_bytes), double(h.capacity_bytes)), std::to_string(h.chunk_count),
         std::to_string(h.session_count), RateText(h.errors), RateText(h.refused),
         bytes(h.bytes_in), bytes(h.bytes_out), h.kernel_target, h.address});
  }
  return table.Render(columns);
}

Lines TimeLines(const TopView& view, size_t columns) {
  TopTable table(view.seconds ? "TIMES" : "TIMES SINCE THE START",
                 {{"/S", 7}, {"P50", 8}, {"P99", 8}, {"1 us to 34 s", 27, true}}, 4);
  for (const TopTime& time : view.times) {
    if (time.counts.total() == 0) continue;
    table.AddRow(time.of, {RateText(time.rate), QuantileText(time.counts, .5),
                           QuantileText(time.counts, .99), BucketsText(time.counts)});
  }
  return table.Render(columns);
}

Lines CorpusLines(const TopView& view, size_t columns) {
  TopTable table("HOTTEST CORPORA", {{"ATTENDS/S", 9}, {"ROWS/S", 8}, {"ATTENDS", 10}}, 3);
  for (const TopCorpus& corpus : view.corpora) {
    table.AddRow(
        corpus.name.empty() ? "(of tenants)" : corpus.name,
        {RateText(corpus.calls), RateText(corpus.query_rows), std::to_string(corpus.call_count)});
  }
  return table.Render(columns);
}

Lines DecisionLines(const TopView& view, size_t columns) {
  TopTable table("DECIDED", {{"BECAUSE", 20, true}, {"/S", 7}, {"TIMES", 10}}, 3);
  for (const TopDecision& decision : view.decisions) {
    table.AddRow(decision.primitive,
                 {decision.reason, RateText(decision.rate), std::to_string(decision.count)});
  }
  return table.Render(columns);
}

// "directory 10.0.0.1:7400: 3 holders, 1 requester", with the hint at the right.
std::string HeadLine(const TopView& view, size_t columns, const std::string& hint) {
  std::string line = absl::StrFormat("directory %s: %s, %s", Printable(view.directory),
                                     FormatCount(view.holders.size(), "holder"),
                                     FormatCount(view.requesters.size(), "requester"));
  if (line.size() + kGap + hint.size() <= columns)
    line += std::string(columns - line.size() - hint.size(), ' ') + hint;
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// Takes rows from the longest tables until all fit. Each table keeps its line of titles. A last
// line counts the rows that were left out.
void Fit(std::vector<Lines>& parts, size_t rows) {
  std::vector<size_t> kept;
  size_t total = 0;
  for (const Lines& part : parts) {
    kept.push_back(part.size());
    total += part.size() + 1;  // the empty line before it
  }
  while (total > rows && !kept.empty()) {
    size_t& most = *std::max_element(kept.begin(), kept.end());
    if (most <= kTableLinesMin) break;
    --most;
    --total;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (kept[i] == parts[i].size()) continue;
    const size_t left_out = parts[i].size() - (kept[i] - 1);
    parts[i].resize(kept[i] - 1);
    parts[i].push_back(absl::StrFormat("and %d more", left_out));
  }
}

}  // namespace

std::string TopText(const TopView& view, const TopRoom& room, const std::string& hint) {
  std::vector<Lines> parts;
  Lines problems;
  for (const TopProblem& problem : view.problems)
    problems.push_back(absl::StrCat("! ", Printable(problem.what), " ", Printable(problem.why)));
  parts.push_back(std::move(problems));
  parts.push_back(RequesterLines(view, room.columns));
  parts.push_back(HolderLines(view, room.columns));
  parts.push_back(TimeLines(view, room.columns));
  parts.push_back(CorpusLines(view, room.columns));
  parts.push_back(DecisionLines(view, room.columns));
  // A table without rows is not shown; problems have no titles.
  for (size_t i = 1; i < parts.size(); ++i)
    if (parts[i].size() == 1) parts[i].clear();
  parts.erase(
      std::remove_if(parts.begin(), parts.end(), [](const Lines& part) { return part.empty(); }),
      parts.end());
  if (room.rows > 0) Fit(parts, room.rows - std::min<size_t>(room.rows, 1));
  Lines lines = {HeadLine(view, room.columns, hint)};
  for (const Lines& part : parts) {
    lines.emplace_back();
    lines.insert(lines.end(), part.begin(), part.end());
  }
  if (room.rows > 0 && lines.size() > room.rows) lines.resize(room.rows);
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, Cut(line, room.columns), "\n");
  return text;
}

}  // namespace ckv::ctl
