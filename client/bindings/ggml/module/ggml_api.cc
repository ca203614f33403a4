#include "client/bindings/ggml/module/ggml_api.h"

#include <dlfcn.h>

#include <cstring>
#include <string_view>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ggml {
namespace {

template <typename Function>
absl::Status Find(void* object, const char* name, Function& to) {
  void* found = object == nullptr ? nullptr : dlsym(object, name);
  if (found == nullptr) found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) return absl::NotFoundError(absl::StrFormat("ggml has no %s", name));
  to = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

// Keeps the first difference from the expected layout.
class Layout {
 public:
  void Expect(bool holds, std::string_view what) {
    if (!holds && status_.ok()) {
      status_ = absl::FailedPreconditionError(
          absl::StrFormat("%s is not at its place in the headers that this was built with", what));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

void CheckNumbers(const GgmlApi& api, Layout& layout) {
  const auto is = [](const char* name, std::string_view due) {
    return name != nullptr && name == due;
  };
  layout.Expect(is(api.op_name(GGML_OP_FLASH_ATTN_EXT), "FLASH_ATTN_EXT"), "FLASH_ATTN_EXT");
  layout.Expect(is(api.op_name(GGML_OP_MUL_MAT), "MUL_MAT"), "MUL_MAT");
  layout.Expect(is(api.op_name(GGML_OP_NONE), "NONE"), "NONE");
  layout.Expect(is(api.op_name(GGML_OP_RESHAPE), "RESHAPE"), "RESHAPE");
  layout.Expect(is(api.op_name(GGML_OP_VIEW), "VIEW"), "VIEW");
  layout.Expect(is(api.op_name(GGML_OP_PERMUTE), "PERMUTE"), "PERMUTE");
  layout.Expect(is(api.op_name(GGML_OP_TRANSPOSE), "TRANSPOSE"), "TRANSPOSE");
  layout.Expect(is(api.type_name(GGML_TYPE_BF16), "bf16"), "bf16");
  layout.Expect(is(api.type_name(GGML_TYPE_F16), "f16"), "f16");
  layout.Expect(is(api.type_name(GGML_TYPE_F32), "f32"), "f32");
}

// A cache, a view of its second stream, and an attention over it, as llama.cpp makes them.
void CheckTensors(const GgmlApi& api, ggml_context* context, Layout& layout) {
  ggml_tensor* cache = api.new_tensor_4d(context, GGML_TYPE_BF16, 24, 6, 2, 1);
  ggml_tensor* q = api.new_tensor_4d(context, GGML_TYPE_F32, 24, 3, 5, 1);
  ggml_tensor* mask = api.new_tensor_4d(context, GGML_TYPE_F16, 6, 5, 1, 1);
  api.set_name(cache, "cache_k_l7");
  api.set_input(mask);
  ggml_tensor* k =
      api.view_4d(context, cache, 24, 1, 6, 1, cache->nb[1], cache->nb[1], cache->nb[2], 288);
  k = api.permute(context, k, 0, 2, 1, 3);
  ggml_tensor* v =
      api.view_4d(context, k, 16, 6, 1, 1, cache->nb[1], cache->nb[2], cache->nb[2], 0);
  ggml_tensor* op =
      api.flash_attn_ext(context, api.permute(context, q, 0, 2, 1, 3), k, v, mask, 0.25f, 0.5f, 2);
  layout.Expect(cache->type == GGML_TYPE_BF16, "type");
  layout.Expect(cache->ne[0] == 24 && cache->ne[1] == 6 && cache->ne[2] == 2, "ne");
  layout.Expect(cache->nb[0] == 2 && cache->nb[1] == 48 && cache->nb[2] == 288, "nb");
  layout.Expect(std::string_view(cache->name) == "cache_k_l7", "name");
  layout.Expect(cache->data != nullptr && cache->data == api.get_data(cache), "data");
  layout.Expect(mask->flags == GGML_TENSOR_FLAG_INPUT, "flags");
  layout.Expect(k->op == GGML_OP_PERMUTE && op->op == GGML_OP_FLASH_ATTN_EXT, "op");
  layout.Expect(k->view_src == cache, "view_src");
  layout.Expect(k->view_offs == 288, "view_offs");
  layout.Expect(op->src[1] == k && op->src[2] == v && op->src[3] == mask && op->src[4] == nullptr,
                "src");
  // Without this call the backend would treat every attention as one whose result is not needed.
  api.build_forward_expand(api.new_graph(context), op);
  layout.Expect((op->flags & GGML_TENSOR_FLAG_COMPUTE) != 0, "GGML_TENSOR_FLAG_COMPUTE");
  float scales[3];
  std::memcpy(scales, op->op_params, sizeof(scales));
  layout.Expect(scales[0] == 0.25f && scales[1] == 0.5f && scales[2] == 2.0f, "op_params");
}

}  // namespace

absl::StatusOr<GgmlApi> FindGgmlApi(const void* caller) {
  Dl_info info{};
  void* object = nullptr;
  if (dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  GgmlApi api;
  CKV_RETURN_IF_ERROR(Find(object, "ggml_version", api.version));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_op_name", api.op_name));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_type_name", api.type_name));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_graph_n_nodes", api.graph_n_nodes));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_graph_node", api.graph_node));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_backend_cpu_buffer_type", api.cpu_buffer_type));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_backend_buft_is_host", api.buft_is_host));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_nbytes", api.nbytes));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_backend_tensor_get", api.tensor_get));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_backend_tensor_set", api.tensor_set));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_init", api.init));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_free", api.free));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_new_tensor_4d", api.new_tensor_4d));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_view_4d", api.view_4d));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_permute", api.permute));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_flash_attn_ext", api.flash_attn_ext));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_set_name", api.set_name));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_set_input", api.set_input));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_get_data", api.get_data));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_new_graph", api.new_graph));
  CKV_RETURN_IF_ERROR(Find(object, "ggml_build_forward_expand", api.build_forward_expand));
  return api;
}

absl::Status CheckLayout(const GgmlApi& api) {
  Layout layout;
  CheckNumbers(api, layout);
  ggml_init_params params{};
  params.mem_size = size_t{1} << 20;
  ggml_context* context = api.init(params);
  if (context == nullptr) return absl::FailedPreconditionError("ggml makes no context");
  CheckTensors(api, context, layout);
  api.free(context);
  return layout.status();
}

}  // namespace ckv::ggml
