#include "client/tools/ctl/result_folder.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {
namespace {

constexpr int kNoPython = 127;

// Returns the script's exit code.
int RunScript(const char* python, const std::string& path) {
  const char* const argv[] = {python, path.c_str(), nullptr};
  pid_t pid = 0;
  if (posix_spawnp(&pid, python, nullptr, nullptr, const_cast<char**>(argv), environ) != 0)
    return kNoPython;
  int state = 0;
  while (waitpid(pid, &state, 0) < 0) {
    if (errno != EINTR) return kNoPython;
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 1;
}

}  // namespace

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && std::filesystem::is_directory(folder, error)) {
    if (access(folder.c_str(), W_OK) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: cannot be written: %s\n  name another with --dir", folder, std::strerror(errno)));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: cannot be made: %s\n  name another with --dir", folder,
                      error ? error.message() : std::string("it is a file")));
}

absl::StatusOr<bool> DrawWithPython(const std::string& path) {
  // Debian's Python has Debian's matplotlib, whatever python3 is first on PATH.
  for (const char* python : {"/usr/bin/python3", "python3"}) {
    const int code = RunScript(python, path);
    if (code == 0) return true;
    if (code != kNoMatplotlibExit && code != kNoPython)
      return absl::InternalError(absl::StrFormat("%s %s ended with %d", python, path, code));
  }
  return false;
}

std::string NotDrawnText(const std::string& page, const std::string& script) {
  return absl::StrFormat(
      "ckvctl: %s is not drawn: it takes matplotlib\n"
      "  apt-get install python3-matplotlib, then python3 %s",
      page, script);
}

absl::StatusOr<std::string> WriteResults(const Ctl& ctl, const std::string& folder,
                                         const ResultFiles& files) {
  CKV_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string base = folder + "/" + files.name, script = folder + "/" + files.script_name;
  CKV_RETURN_IF_ERROR(WriteOutput(base + ".json", RenderJson(files.json)));
  std::string written = base + ".json";
  for (const CsvFile& file : files.tables) {
    CKV_RETURN_IF_ERROR(WriteOutput(folder + "/" + file.name, file.text));
    written += ", " + file.name;
  }
  CKV_RETURN_IF_ERROR(WriteOutput(script, files.script_text));
  CKV_ASSIGN_OR_RETURN(const bool drawn, DrawWithPython(script));
  if (!drawn) ctl.Note(NotDrawnText(base + ".html", script));
  return written + (drawn ? ", " + files.name + ".html" : "");
}

absl::Status PrintAndWrite(const Ctl& ctl, std::string text, const std::string& folder,
                           const ResultFiles& files) {
  absl::Status status;
  if (!folder.empty()) {
    const absl::StatusOr<std::string> written = WriteResults(ctl, folder, files);
    if (written.ok()) text += "\n" + *written + "\n";
    status = written.status();
  }
  ctl.Print(text, files.json);
  return status;
}

}  // namespace ckv::ctl
