// Chooses and opens the backend of a process. StartBackend, in order:
//   1. A configured cpu needs no library.
//   2. Looks for the library in the given folder, and in `other` relative to it.
//   3. LoadModule opens the file and compares its build with the program's: both share C++ classes.
//   4. Open opens the device. OpenOnce keeps the result by path, so errors are kept too.
// If a step fails, cuda is an error, and auto takes this processor with the reason. A library is
// never closed, because its code runs until the process ends.

#include "attention/device/backend_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status.h"
#include "proto/base/version.h"

namespace ckv {
namespace {

std::array<std::string, 2> PlacesBeside(const std::string& folder, std::string_view other) {
  return {absl::StrCat(folder, "/", std::string(kBackendLibrary)),
          absl::StrCat(folder, "/", std::string(other), "/", std::string(kBackendLibrary))};
}

// Whether there is anything by that name. A link to nothing is there, and does not load.
bool IsThere(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

absl::Status NotUsable(const std::string& path, std::string_view why) {
  return absl::FailedPreconditionError(absl::StrFormat("%s: %s", path, why));
}

// Returns the module of a library of this build.
absl::StatusOr<const BackendModule*> LoadModule(const std::string& path) {
  // Never closed: what it computes with lives as long as the process.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotUsable(path, absl::StrCat("it does not load: ", dlerror()));
  const auto module =
      reinterpret_cast<const BackendModule* (*)()>(dlsym(library, kBackendModuleSymbol));
  const BackendModule* const made = module == nullptr ? nullptr : module();
  if (made == nullptr) return NotUsable(path, "it is no backend of ckv");
  constexpr size_t kReadableBytes = offsetof(BackendModule, open);
  const std::string build =
      made->struct_bytes < kReadableBytes || made->build == nullptr ? "unknown" : made->build;
  if (build != BackendBuild() || made->struct_bytes != sizeof(BackendModule)) {
    return NotUsable(path, absl::StrFormat("it is of build %s, and this program of %s: install "
                                           "both from one build",
                                           build, BackendBuild()));
  }
  return made;
}

absl::StatusOr<Backend*> Open(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const BackendModule* const module, LoadModule(path));
  absl::StatusOr<std::unique_ptr<Backend>> opened = module->open();
  if (!opened.ok()) return Annotate(opened.status(), path);
  if (*opened == nullptr) return NotUsable(path, "it opened nothing");
  return (*std::move(opened)).release();
}

// Every library is opened once.
absl::StatusOr<Backend*> OpenOnce(const std::string& path) {
  static constinit absl::Mutex mu(absl::kConstInit);
  static auto* const by_path = new std::map<std::string, absl::StatusOr<Backend*>>();
  absl::MutexLock lock(&mu);
  const auto known = by_path->find(path);
  if (known != by_path->end()) return known->second;
  return by_path->emplace(path, Open(path)).first->second;
}

BackendStart ThisProcessor(std::string_view why) {
  return {.backend = Backend::Cpu(), .reason = absl::StrFormat("backend cpu: %s", why)};
}

}  // namespace

const std::string& BackendBuild() {
#ifdef NDEBUG
  constexpr std::string_view kChecks = "";
#else
  constexpr std::string_view kChecks = ", with assertions";
#endif
  static const std::string* const build = new std::string(
      absl::StrFormat("ckv %s, commit %s, compiler %s%s", Version(),
                      Commit().empty() ? "unknown" : Commit(), __VERSION__, kChecks));
  return *build;
}

std::string FolderOfProgram() {
  std::array<char, PATH_MAX> path;
  const ssize_t bytes = readlink("/proc/self/exe", path.data(), path.size());
  if (bytes <= 0) return ".";
  const std::string program(path.data(), static_cast<size_t>(bytes));
  return program.substr(0, program.rfind('/'));
}

std::string FolderOfCode(const void* code) {
  Dl_info info = {};
  void* extra = nullptr;
  std::array<char, PATH_MAX> path;
  if (dladdr1(code, &info, &extra, RTLD_DL_LINKMAP) == 0) return "";
  const std::string_view name = static_cast<const link_map*>(extra)->l_name;
  if (name.empty()) return FolderOfProgram();
  // A relative name is that of the time of loading, and the working folder may be another by now.
  if (name.front() != '/' || realpath(name.data(), path.data()) == nullptr) return "";
  const std::string file(path.data());
  return file.substr(0, file.rfind('/'));
}

absl::StatusOr<BackendStart> StartBackend(std::string_view name, const std::string& folder,
                                          std::string_view other) {
  if (name == "cpu") return ThisProcessor("the configuration names it");
  const bool must = name == "cuda";
  if (!must && name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrFormat("backend \"%s\": auto, cpu and cuda are the choices", name));
  }
  if (folder.empty()) {
    constexpr std::string_view kUnknown =
        "the folder of this library is not known, because it was loaded by a relative name: "
        "load it by its whole path";
    if (must) return absl::NotFoundError(absl::StrFormat("backend cuda: %s", kUnknown));
    return ThisProcessor(kUnknown);
  }
  const auto places = PlacesBeside(folder, other);
  for (const std::string& path : places) {
    if (!IsThere(path)) continue;
    const absl::StatusOr<Backend*> opened = OpenOnce(path);
    if (opened.ok()) {
      return BackendStart{.backend = *opened,
                          .reason = absl::StrFormat("backend cuda: %s, kernels %s", path,
                                                    (*opened)->kernel_target())};
    }
    if (must) return Annotate(opened.status(), "backend cuda");
    BackendStart start = ThisProcessor(
        absl::StrFormat("a GPU is not used, %s", std::string(opened.status().message())));
    start.is_warning = true;
    return start;
  }
  if (!must) return ThisProcessor(absl::StrFormat("there is no %s", places[0]));
  return absl::NotFoundError(absl::StrFormat(
      "backend cuda: there is neither %s nor %s; install it there, or set backend: cpu", places[0],
      places[1]));
}

}  // namespace ckv
