// Renders what ckvctl top shows for a terminal or a file.

#pragma once

#include <cstddef>
#include <string>

#include "client/ctl/top/top_view.h"

namespace ckv::ctl {

// The room for a text. Text is for kTerminalColumns at least: with fewer, lines are cut.
struct TopRoom {
  size_t columns = kTerminalColumns;
  // The most lines. If 0, there is no limit.
  size_t rows = 0;
};

// Lines of printable ASCII, each of at most `columns` characters, each ended by a newline. The
// longest tables lose rows if there is no room for all, and say how many. Wide rooms get more
// columns. `hint` ends the first line.
std::string TopText(const TopView& view, const TopRoom& room, const std::string& hint = "");

}  // namespace ckv::ctl
