// The ggml backend: one device of type ACCEL that takes attentions with MLA.

#pragma once

#include "client/bindings/ggml/module/ggml_api.h"
#include "ggml-backend-impl.h"

namespace ckv::ggml {

// Returns the backend's registration, which is the same in every call and valid until the process
// ends: the library must stay loaded. Copies `api`, which must be complete (FindGgmlApi) and have
// passed CheckLayout. Not thread-safe: ggml calls it while it loads the library. If a setting is
// wrong, every attention fails with the reason.
//
// Every context of llama.cpp queries the device for each node of its graphs; JudgeOp (tensor_op.h)
// chooses those that it takes. Contexts may run on different threads at once. The device uses CPU
// buffers, so no tensor is copied. A graph whose attention fails returns GGML_STATUS_FAILED, and
// the reason is logged to stderr. llama_decode then returns -3 and removes the batch's cells. The
// same batch may be decoded again.
//
// Provides by name (ggml_backend_reg_get_proc_address) the functions of
// client/bindings/ggml/ckv_ggml.h, and ggml_backend_set_n_threads.
ggml_backend_reg_t BackendOf(const GgmlApi& api);

}  // namespace ckv::ggml
