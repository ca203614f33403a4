// The settings of an engine's attention by ckv. They are read from the environment, because an
// engine has no options for ckv.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/context.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv::ggml {

struct Settings {
  // CKV_DIRECTORY, host:port or host:port,host:port,... ReadSettings always sets it; by default
  // 127.0.0.1:7400.
  std::string directory;
  // CKV_GGML_CORPUS: the corpus that every sequence without a reference (store/formats/
  // reference_cell.h) attends as a whole. If empty, none.
  std::string corpus;
  // CKV_GGML_POSITION: the position at which that corpus begins. If unset, the corpus ends before
  // position 0, so an engine counts its own tokens from 0 on.
  std::optional<int64_t> position;
  // CKV_GGML_TENANT: the tenant whose corpora are read, in addition to the shared ones. A name, not
  // a credential.
  std::string tenant;
  // CKV_GGML_POLICY: auto, route or cache.
  ContextPolicy policy = ContextPolicy::kAuto;
  // CKV_GGML_LOCAL_CACHE_BYTES, like 4GiB: the size of the local row cache.
  uint64_t local_cache_bytes = uint64_t{1} << 30;
  // CKV_GGML_TIMEOUT, like 10s: how long the attention of one layer may take.
  Duration timeout = std::chrono::seconds(10);
  // CKV_GGML_WIRE: f32 or bf16, the type of the partials on the wire.
  PartialDtype wire = PartialDtype::kF32;
  // CKV_GGML_FABRICS, like shm,tcp,verbs: the fabrics to use. A probe chooses the fastest that a
  // holder also has.
  std::vector<FabricKind> fabrics = {FabricKind::kShm, FabricKind::kTcp};
  // CKV_GGML_VERBS_DEVICE: the RDMA device for verbs. If empty, the only one.
  std::string verbs_device;
  // CKV_GGML_KERNEL_TARGET: the kernel target of the fleet, if it has a fixed one (AVX3, for
  // example). If empty, the fastest here.
  std::string kernel_target;
};

// Reads the settings, and checks their form only: the caller applies kernel_target, and opens the
// device. `value_of` returns the value of a variable that is set. `names` has the names of all
// variables of the environment, to find unknown ones.
//   InvalidArgument     a value is not valid for its variable, or a variable begins with CKV_GGML_
//                       and is unknown. The message names it and the right values.
absl::StatusOr<Settings> ReadSettings(
    const std::function<std::optional<std::string>(const std::string&)>& value_of,
    std::span<const std::string> names);
// As above, from the environment of this process.
absl::StatusOr<Settings> ReadSettings();

}  // namespace ckv::ggml
