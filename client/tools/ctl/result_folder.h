// A folder that a command fills with its results, and the plots in it.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

// Makes the folder that --dir names, if need be. Call it before long work whose results it takes.
//   FailedPrecondition  it cannot be made or written, or is a file.
absl::Status MakeFolder(const std::string& folder);

// Runs the Python script at `path`, which draws with matplotlib, and waits for it. Returns false if
// this machine has no Python with matplotlib: the script ends with kNoMatplotlibExit then.
//   Internal            the script failed; its reason is on stderr.
absl::StatusOr<bool> DrawWithPython(const std::string& path);
inline constexpr int kNoMatplotlibExit = 3;
// The line for a user whose `page` was not drawn.
std::string NotDrawnText(const std::string& page, const std::string& script);

// Files of results, and a script that draws a page of them.
struct ResultFiles {
  std::string name;  // "plan" makes plan.json and plan.html
  Json json;
  std::vector<CsvFile> tables;
  std::string script_name;       // "plan_figures.py"
  std::string_view script_text;  // reads the JSON and writes the page, in its own folder
};
// Writes the files to `folder`, which is made if need be, and runs the script. Returns the names of
// the files for people. If nothing can be drawn, prints how to draw later.
//   Errors as OutputFile (store/formats/output_file.h), MakeFolder and DrawWithPython.
absl::StatusOr<std::string> WriteResults(const Ctl& ctl, const std::string& folder,
                                         const ResultFiles& files);
// Prints `text`, or files.json, and writes the files to `folder` if it is not empty. Prints also if
// they cannot be written, and then returns that error.
absl::Status PrintAndWrite(const Ctl& ctl, std::string text, const std::string& folder,
                           const ResultFiles& files);

}  // namespace ckv::ctl
