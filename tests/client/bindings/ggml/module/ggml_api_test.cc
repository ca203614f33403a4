// Goal: a ggml that this was not built for is refused, before any tensor of it is read.
// Method: functions of ggml that this test has itself. tests/engines loads the library into a real
// one.

#include "client/bindings/ggml/module/ggml_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string_view>

namespace ckv::ggml {
namespace {

using testing::HasSubstr;

// The mistake that the functions below make.
const char* broken = "";
std::deque<ggml_tensor> tensors;
char memory[64];

bool IsBroken(std::string_view what) { return broken == what; }

const char* OpName(ggml_op op) {
  switch (op) {
    case GGML_OP_FLASH_ATTN_EXT:
      return IsBroken("numbers") ? "FLASH_ATTN_BACK" : "FLASH_ATTN_EXT";
    case GGML_OP_MUL_MAT:
      return "MUL_MAT";
    case GGML_OP_NONE:
      return "NONE";
    case GGML_OP_RESHAPE:
      return "RESHAPE";
    case GGML_OP_VIEW:
      return "VIEW";
    case GGML_OP_PERMUTE:
      return "PERMUTE";
    case GGML_OP_TRANSPOSE:
      return "TRANSPOSE";
    default:
      return "?";
  }
}
const char* TypeName(ggml_type type) {
  if (type == GGML_TYPE_BF16) return IsBroken("types") ? "q8_0" : "bf16";
  return type == GGML_TYPE_F16 ? "f16" : "f32";
}
ggml_context* Init(ggml_init_params) {
  tensors.clear();
  return IsBroken("context") ? nullptr : reinterpret_cast<ggml_context*>(memory);
}
void Free(ggml_context*) {}
ggml_tensor* NewTensor(ggml_context*, ggml_type type, int64_t a, int64_t b, int64_t c, int64_t d) {
  ggml_tensor& tensor = tensors.emplace_back();
  tensor = {};
  tensor.type = type;
  tensor.data = memory;
  const int64_t ne[] = {a, b, c, d};
  std::copy(ne, ne + 4, tensor.ne);
  tensor.nb[0] = type == GGML_TYPE_F32 ? 4 : 2;
  for (int i = 1; i < 4; ++i) tensor.nb[i] = tensor.nb[i - 1] * static_cast<size_t>(ne[i - 1]);
  return &tensor;
}
ggml_tensor* View(ggml_context*, ggml_tensor* of, int64_t, int64_t, int64_t, int64_t, size_t,
                  size_t, size_t, size_t offset) {
  ggml_tensor& tensor = tensors.emplace_back(*of);
  tensor.op = GGML_OP_VIEW;
  tensor.view_src = of->view_src != nullptr ? of->view_src : of;
  tensor.view_offs = of->view_offs + (IsBroken("views") ? 0 : offset);
  return &tensor;
}
ggml_tensor* Permute(ggml_context* context, ggml_tensor* of, int, int, int, int) {
  ggml_tensor* tensor = View(context, of, 0, 0, 0, 0, 0, 0, 0, 0);
  tensor->op = GGML_OP_PERMUTE;
  return tensor;
}
ggml_tensor* Attend(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v,
                    ggml_tensor* mask, float scale, float bias, float cap) {
  ggml_tensor* tensor = NewTensor(context, GGML_TYPE_F32, 16, 3, 5, 1);
  tensor->op = GGML_OP_FLASH_ATTN_EXT;
  tensor->src[0] = q;
  tensor->src[1] = k;
  tensor->src[2] = v;
  tensor->src[3] = mask;
  const float params[] = {scale, IsBroken("params") ? cap : bias, cap};
  std::memcpy(tensor->op_params, params, sizeof(params));
  return tensor;
}
ggml_tensor* SetName(ggml_tensor* tensor, const char* name) {
  std::strcpy(tensor->name, name);
  return tensor;
}
void SetInput(ggml_tensor* tensor) { tensor->flags |= IsBroken("flags") ? 2 : 1; }
void* GetData(const ggml_tensor* tensor) { return IsBroken("data") ? memory + 8 : tensor->data; }

ggml_cgraph* NewGraph(ggml_context*) { return reinterpret_cast<ggml_cgraph*>(memory); }
void Expand(ggml_cgraph*, ggml_tensor* node) { node->flags |= IsBroken("compute") ? 32 : 16; }

absl::Status Check(const char* what) {
  broken = what;
  GgmlApi api;
  api.version = [] { return "0"; };
  api.op_name = OpName;
  api.type_name = TypeName;
  api.init = Init;
  api.free = Free;
  api.new_tensor_4d = NewTensor;
  api.view_4d = View;
  api.permute = Permute;
  api.flash_attn_ext = Attend;
  api.set_name = SetName;
  api.set_input = SetInput;
  api.get_data = GetData;
  api.new_graph = NewGraph;
  api.build_forward_expand = Expand;
  return CheckLayout(api);
}

TEST(GgmlApi, TheLayoutOfTheHeadersPasses) {
  const absl::Status status = Check("");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(GgmlApi, AnotherLayoutIsRefused) {
  for (const auto& [what, text] : std::vector<std::pair<const char*, const char*>>{
           {"numbers", "FLASH_ATTN_EXT is not at its place"},
           {"types", "bf16 is not at its place"},
           {"context", "no context"},
           {"views", "view_offs is not at its place"},
           {"params", "op_params is not at its place"},
           {"flags", "flags is not at its place"},
           {"compute", "FLAG_COMPUTE is not at its place"},
           {"data", "data is not at its place"}}) {
    const absl::Status status = Check(what);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << what;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

// This process has no ggml.
TEST(GgmlApi, AProgramWithoutGgmlIsRefused) {
  const auto api = FindGgmlApi(__builtin_return_address(0));
  EXPECT_TRUE(absl::IsNotFound(api.status()));
  EXPECT_THAT(api.status().message(), HasSubstr("ggml has no ggml_version"));
}

}  // namespace
}  // namespace ckv::ggml
