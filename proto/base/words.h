// Words that people read: the nearest of those that are known, and lines that fit a terminal.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ckv {

// The candidate with the fewest letters added, left out or changed, as long as that is about a
// third of the word. Empty if there is none.
std::string_view NearestWord(std::string_view word, std::span<const std::string> candidates);

// The columns that helps keep to.
inline constexpr size_t kHelpColumns = 80;

// Returns `text` with its spaces turned into line ends where a line would be longer than `columns`
// bytes. Lines that are in `text` stay lines. A longer word is not cut. Each line but the first
// begins with `indent`, which counts; the first has that much less room, too.
std::string WrapWords(std::string_view text, size_t columns, std::string_view indent = "");

}  // namespace ckv
