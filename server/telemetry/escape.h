// Text from anywhere made harmless for one line of a log: no byte of it ends the line, a quoted
// value or a terminal's state.

#pragma once

#include <string>
#include <string_view>

namespace ckv {

// Appends `text` as the inside of a JSON string. Quotes and backslashes are escaped. So are all
// control characters, those that turn the direction of text, and line separators. Bytes that are no
// UTF-8 become U+FFFD. The result is valid UTF-8, without a newline.
void AppendJsonText(std::string_view text, std::string& out);

// Appends `text` for people: as AppendJsonText, but quotes and backslashes stay, and bytes that are
// no UTF-8 become \xNN.
void AppendPlainText(std::string_view text, std::string& out);

// Appends `text` as a value of logfmt. It is bare if it is made of visible ASCII without `=`, `"`
// and
// `\`. Else it is in quotes, with the escapes of JSON.
void AppendLogfmtValue(std::string_view text, std::string& out);

// Returns the longest beginning of `text` of at most `bytes_max` that cuts no UTF-8 character.
std::string_view CutText(std::string_view text, size_t bytes_max);

}  // namespace ckv
