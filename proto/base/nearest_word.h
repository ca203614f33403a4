// The known word that a mistyped one most likely stands for.

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ckv {

// The candidate with the fewest letters added, left out or changed, as long as that is about a
// third of the word. Empty if there is none.
std::string_view NearestWord(std::string_view word, std::span<const std::string> candidates);

}  // namespace ckv
