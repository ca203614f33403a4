// libggml-ckv.so: what ggml calls when GGML_BACKEND_PATH names it.

#include <string>

#include "client/bindings/ggml/module/backend.h"
#include "client/bindings/ggml/module/ggml_api.h"
#include "client/bindings/ggml/module/process.h"
#include "proto/base/log.h"

// Null if this ggml is not one that the library was built for. The log says why.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  const absl::StatusOr<ckv::ggml::GgmlApi> api =
      ckv::ggml::FindGgmlApi(__builtin_return_address(0));
  if (!api.ok()) {
    ckv::Log().error("llama.cpp: not loaded: {}", std::string(api.status().message()));
    return nullptr;
  }
  if (const absl::Status status = ckv::ggml::CheckLayout(*api); !status.ok()) {
    ckv::Log().error(
        "llama.cpp: not loaded: this ggml is {}, and {}\n"
        "  build libggml-ckv.so with the headers of the llama.cpp that loads it",
        api->version(), std::string(status.message()));
    return nullptr;
  }
  (void)ckv::ggml::Process::Get();  // reports wrong settings at once
  return ckv::ggml::BackendOf(*api);
}
