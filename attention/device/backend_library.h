// Loads the backend of a GPU from a shared library installed next to the program. So one program
// runs on hosts with and without a GPU, and does not link to CUDA.
//
//   CKV_ASSIGN_OR_RETURN(const BackendStart start, StartBackend("auto", FolderOfProgram()));
//   Log().info("{}", start.reason);
//   options.backend = start.backend;
//
// The library is libckv_cuda.so. A program searches its own folder, then ../lib/ckv relative to it:
// bin/ckvd finds lib/ckv/libckv_cuda.so. A library that loads the backend searches its own folder,
// then the subfolder ckv: lib/libckv.so finds the same file. No environment variable or setting can
// name another place, because a configuration would then name code to run.
//
// Program and library share C++ classes (attention/backend.h), so both must come from the same
// build. The library's build is compared before any of its classes is used (BackendModule). The
// library is never unloaded.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "attention/backend.h"

namespace ckv {

inline constexpr std::string_view kBackendLibrary = "libckv_cuda.so";
inline constexpr char kBackendModuleSymbol[] = "ckv_backend_module";

// The library exports `extern "C" const ckv::BackendModule* ckv_backend_module();`. The returned
// memory stays valid. The first two fields never move, so any build can read any library's.
struct BackendModule {
  uint32_t struct_bytes = sizeof(BackendModule);
  const char* build = nullptr;  // BackendBuild() of the library
  // Opens the device. Called at most once, by the first StartBackend that finds the library.
  //   FailedPrecondition  this host has no such device, or its driver is too old; the text names
  //                       the cause.
  //   ResourceExhausted   another process uses all of the device's memory.
  absl::StatusOr<std::unique_ptr<Backend>> (*open)() = nullptr;
};

// Returns what must be equal in a program and its library: version, commit, compiler, and whether
// assertions are compiled in.
const std::string& BackendBuild();

// Returns the folder of the running program, with links resolved.
std::string FolderOfProgram();
// Returns the folder of the loaded file that contains the address `code`, with links resolved. A
// library passes an address of its own. Returns "" if there is no such file. Also returns ""
// if the file was loaded by a relative name, so that no code is loaded from the current working
// folder.
std::string FolderOfCode(const void* code);

// The second folder to search, relative to the first.
inline constexpr std::string_view kFromProgram = "../lib/ckv";
inline constexpr std::string_view kFromLibrary = "ckv";

struct BackendStart {
  Backend* backend = nullptr;  // never null; valid until the process ends
  std::string reason;          // one line for people: the backend chosen, and why
  bool is_warning = false;     // a library exists but could not be used
};

// Chooses the backend by `name`. Searches for the library in `folder`, then in `folder`/`other`:
//   cpu    this processor; no search
//   cuda   the library; an error if it cannot be used
//   auto   the library if it exists and can be used, otherwise this processor
// Blocks until the device is open. Thread-safe. A library is opened once: later calls that find the
// same file return the same backend, or the same error.
//   InvalidArgument     any other name.
//   NotFound            cuda: there is no library, and the text names the places searched; or
//                       `folder` is empty.
//   FailedPrecondition  cuda: the library comes from another build, does not load, or finds no
//                       device.
//   others              cuda: as BackendModule::open.
absl::StatusOr<BackendStart> StartBackend(std::string_view name, const std::string& folder,
                                          std::string_view other = kFromProgram);

}  // namespace ckv
