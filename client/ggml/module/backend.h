// The ggml backend: one device of type ACCEL that takes attentions with MLA.

#pragma once

#include "absl/status/statusor.h"
#include "client/ggml/module/ggml_api.h"
#include "ggml-backend-impl.h"

namespace ckv::ggml {

// Returns the backend's registration, which lives as long as the process. Every context of
// llama.cpp asks its device for each node of its graphs. Its buffers are the processor's, so no
// tensor moves. A graph whose attention fails is GGML_STATUS_FAILED. llama_decode then
// returns an error and takes back the batch's cells. The same batch may be decoded again.
//
// By name it has the functions of client/ggml/ckv_ggml.h, and ggml_backend_set_n_threads.
ggml_backend_reg_t BackendOf(const GgmlApi& api);

}  // namespace ckv::ggml
