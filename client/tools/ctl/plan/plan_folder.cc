#include "client/tools/ctl/plan/plan_folder.h"

#include "client/tools/ctl/result_folder.h"
#include "proto/base/status.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {

absl::StatusOr<std::string> WritePlanFolder(const Ctl& ctl, const std::string& folder,
                                            const Json& json, const std::vector<CsvFile>& tables,
                                            const PlanScript& script) {
  CKV_RETURN_IF_ERROR(MakeFolder(folder));
  CKV_RETURN_IF_ERROR(WriteOutput(folder + "/plan.json", RenderJson(json)));
  std::string written = folder + "/plan.json";
  for (const CsvFile& file : tables) {
    CKV_RETURN_IF_ERROR(WriteOutput(folder + "/" + file.name, file.text));
    written += ", " + file.name;
  }
  const std::string path = folder + "/" + script.name, page = folder + "/plan.html";
  CKV_RETURN_IF_ERROR(WriteOutput(path, script.text));
  CKV_ASSIGN_OR_RETURN(const bool drawn, DrawWithPython(path));
  if (!drawn) ctl.Note(NotDrawnText(page, path));
  return written + (drawn ? ", plan.html" : "");
}

}  // namespace ckv::ctl
