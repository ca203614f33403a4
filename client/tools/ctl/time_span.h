// Command-line options that are lengths of time (proto/base/time_span.h).

#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "proto/base/time_span.h"

namespace ckv::ctl {

// Accepts a length of time with its unit, at most kTimeSpanMax.
CLI::Validator TimeSpan();

// Returns the length of time in `text` if TimeSpan accepts it, else 0.
Duration TimeSpanOf(const std::string& text);

// Adds an option of 1ms to 1h, whose default is the current value of `timeout_ms`. `timeout_ms`
// must live as long as `verb`.
void AddTimeout(CLI::App& verb, const char* name, uint32_t& timeout_ms, const char* description);

}  // namespace ckv::ctl
