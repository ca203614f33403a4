#include "proto/base/words.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_split.h"

namespace ckv {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view NearestWord(std::string_view word, std::span<const std::string> candidates) {
  std::string_view nearest;
  // A third of the word mistyped still says what was meant; more is another word. In a short word
  // one letter is all: nope is not np. But stat may be the beginning of status.
  size_t best = word.size() < 6 ? 2 : word.size() / 3 + 2;
  for (const std::string& candidate : candidates) {
    const bool begins = candidate.starts_with(word) && candidate.size() <= word.size() + 2;
    const size_t distance = begins ? 1 : EditDistance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string WrapWords(std::string_view text, size_t columns, std::string_view indent) {
  std::string wrapped;
  bool is_first = true;
  const absl::string_view whole(text.data(), text.size());
  for (const absl::string_view line : absl::StrSplit(whole, '\n')) {
    size_t at = 0;  // columns of the line that are taken
    const auto begin_line = [&] {
      if (!is_first) wrapped.append("\n").append(indent);
      is_first = false;
      at = indent.size();
    };
    begin_line();
    bool has_word = false;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      if (has_word && at + 1 + word.size() > columns) {
        begin_line();
        has_word = false;
      }
      if (has_word) wrapped += ' ';
      at += word.size() + (has_word ? 1 : 0);
      wrapped.append(word.data(), word.size());
      has_word = true;
    }
  }
  return wrapped;
}

}  // namespace ckv
