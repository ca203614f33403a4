// The functions of ggml that the backend calls, found in the ggml that loads it.
//
// libggml-ckv.so does not link ggml, because engines ship ggml under many names, as libraries or
// inside the program. The functions are those of the caller's own ggml, even if a process has two.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace ckv::ggml {

struct GgmlApi {
  decltype(&ggml_version) version = nullptr;
  decltype(&ggml_op_name) op_name = nullptr;
  decltype(&ggml_type_name) type_name = nullptr;
  decltype(&ggml_graph_n_nodes) graph_n_nodes = nullptr;
  decltype(&ggml_graph_node) graph_node = nullptr;
  decltype(&ggml_backend_cpu_buffer_type) cpu_buffer_type = nullptr;
  decltype(&ggml_backend_buft_is_host) buft_is_host = nullptr;
  decltype(&ggml_nbytes) nbytes = nullptr;
  decltype(&ggml_backend_tensor_get) tensor_get = nullptr;
  decltype(&ggml_backend_tensor_set) tensor_set = nullptr;
  // For CheckLayout.
  decltype(&ggml_init) init = nullptr;
  decltype(&ggml_free) free = nullptr;
  decltype(&ggml_new_tensor_4d) new_tensor_4d = nullptr;
  decltype(&ggml_view_4d) view_4d = nullptr;
  decltype(&ggml_permute) permute = nullptr;
  decltype(&ggml_flash_attn_ext) flash_attn_ext = nullptr;
  decltype(&ggml_set_name) set_name = nullptr;
  decltype(&ggml_set_input) set_input = nullptr;
  decltype(&ggml_get_data) get_data = nullptr;
  decltype(&ggml_new_graph) new_graph = nullptr;
  decltype(&ggml_build_forward_expand) build_forward_expand = nullptr;
};

// Finds the functions from the object that contains the code at `caller`: there, in its
// dependencies, or anywhere in the program.
//   NotFound            a function is missing; names it.
absl::StatusOr<GgmlApi> FindGgmlApi(const void* caller);

// Checks that tensors of this ggml have the memory layout of the headers that this was built with.
// The version of its backend interface (GGML_BACKEND_API_VERSION) does not show that: ops get new
// numbers in releases of one version. Creates some tensors and checks each field that is used.
//   FailedPrecondition  something differs; names it.
absl::Status CheckLayout(const GgmlApi& api);

}  // namespace ckv::ggml
