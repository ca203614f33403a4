// The logger of ckv's libraries and programs, which never writes to stdout.

#pragma once

#include <spdlog/logger.h>

namespace ckv {

// Thread-safe; the logger is never destroyed. It writes warnings and errors to stderr. A program
// that embeds ckv may change its level (spdlog::level::off silences it), its pattern and its sinks
// before it uses anything else of ckv.
spdlog::logger& Log();

}  // namespace ckv
