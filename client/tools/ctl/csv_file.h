// A table as a file of comma-separated values.

#pragma once

#include <string>

#include "client/tools/ctl/output.h"

namespace ckv::ctl {

struct CsvFile {
  std::string name;
  std::string text;
};

// Returns a line of titles, and a line for each object of `rows`, a list of flat objects with the
// keys of the first one. Null becomes an empty cell; texts are quoted if they need it (RFC 4180).
std::string CsvOf(const Json& rows);

}  // namespace ckv::ctl
