// The ggml backend: one device of type ACCEL that takes attentions with MLA.

#pragma once

#include "absl/status/statusor.h"
#include "client/bindings/ggml/module/ggml_api.h"
#include "ggml-backend-impl.h"

namespace ckv::ggml {

// Returns the backend's registration, which is valid until the process ends and is the same in
// every call. Copies `api`. Call it on one thread, at first: ggml does, when it loads the library.
// Errors of the settings are found at the first attention, which fails with them.
//
// Every context of llama.cpp queries the device for each node of its graphs. Contexts may run on
// different threads at once. The device uses CPU buffers, so no tensor is copied. A graph whose
// attention fails returns GGML_STATUS_FAILED, and the reason is logged to stderr. llama_decode then
// returns an error and removes the batch's cells. The same batch may be decoded again.
//
// Provides by name (ggml_backend_reg_get_proc_address) the functions of
// client/bindings/ggml/ckv_ggml.h, and ggml_backend_set_n_threads.
ggml_backend_reg_t BackendOf(const GgmlApi& api);

}  // namespace ckv::ggml
