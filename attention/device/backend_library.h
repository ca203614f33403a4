// The backend of a GPU, which a program loads at its start from a library beside it. So one program
// runs on hosts with and without a GPU, and links nothing of CUDA.
//
//   CKV_ASSIGN_OR_RETURN(const BackendStart start, StartBackend("auto", FolderOfProgram()));
//   Log().info("{}", start.told);
//   options.backend = start.backend;
//
// The library is libckv_cuda.so. It is looked for in the program's folder, then in ../lib/ckv from
// there: bin/ckvd finds lib/ckv/libckv_cuda.so. A library that loads it looks in its own folder,
// then in ckv below: lib/libckv.so finds the same file. No variable and no setting names another
// place, because a configuration would then name code.
//
// The two share C++ classes (attention/backend.h), so both must be of one build. The library says
// its build before any of its classes is used (BackendModule). It is never unloaded.

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

// A library shows `extern "C" const ckv::BackendModule* ckv_backend_module();`, which returns
// memory that stays. The first two fields never move, so any build can read any library's.
struct BackendModule {
  uint32_t struct_bytes = sizeof(BackendModule);
  const char* build = nullptr;  // BackendBuild() of the library
  // Opens the device. Called once, by the thread that starts the program.
  //   FailedPrecondition  this host has no such device, or its driver is too old; says which.
  //   ResourceExhausted   another process has all of the device's memory.
  absl::StatusOr<std::unique_ptr<Backend>> (*open)() = nullptr;
};

// Returns what must be equal in a program and its library: version, commit, compiler, checks.
const std::string& BackendBuild();

// Returns the folder that the running program lies in, links resolved.
std::string FolderOfProgram();
// Returns the folder of the loaded file that has this address in it, links resolved. A library asks
// with an address of its own. Empty if the file was loaded by a relative name: no code is loaded
// from whatever the working folder is.
std::string FolderOfCode(const void* code);

// The other folder in which it may be, from the first.
inline constexpr std::string_view kFromProgram = "../lib/ckv";
inline constexpr std::string_view kFromLibrary = "ckv";

struct BackendStart {
  Backend* backend = nullptr;  // never null; it lives as long as the process
  std::string told;            // one line for people: which, and why
  bool is_warning = false;     // a library is there and could not be used
};

// Chooses what computes, by `name`. The library is looked for in `folder`, then in
// `folder`/`other`:
//   cpu    this processor; no library is looked for
//   cuda   the library; an error if it cannot be used
//   auto   the library if there is one that can be used, else this processor
// Blocks for as long as the device takes to open. Thread-safe. A library is opened once: later
// calls that find the same file return the same backend, or the same error.
//   InvalidArgument     another name.
//   NotFound            cuda: there is no library, or `folder` is empty; names the places.
//   FailedPrecondition  cuda: the library is of another build, does not load, or finds no device.
//   else                as BackendModule::open.
absl::StatusOr<BackendStart> StartBackend(std::string_view name, const std::string& folder,
                                          std::string_view other = kFromProgram);

}  // namespace ckv
