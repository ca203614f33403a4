#include "client/tools/ctl/simulate/simulation_folder.h"

#include "client/tools/ctl/result_folder.h"
#include "client/tools/ctl/simulate/simulate_figures.h"
#include "proto/base/status.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {

absl::StatusOr<std::string> WriteSimulation(const Ctl& ctl, const std::string& folder,
                                            const std::vector<SimulationCsv>& tables,
                                            const Json& json) {
  CKV_RETURN_IF_ERROR(MakeFolder(folder));
  CKV_RETURN_IF_ERROR(WriteOutput(folder + "/simulation.json", RenderJson(json)));
  std::string written = folder + "/simulation.json";
  for (const SimulationCsv& file : tables) {
    CKV_RETURN_IF_ERROR(WriteOutput(folder + "/" + file.name, file.text));
    written += ", " + file.name;
  }
  const std::string script = folder + "/simulate_figures.py", page = folder + "/simulation.html";
  CKV_RETURN_IF_ERROR(WriteOutput(script, kSimulateFiguresScript));
  CKV_ASSIGN_OR_RETURN(const bool drawn, DrawWithPython(script));
  if (!drawn) ctl.Note(NotDrawnText(page, script));
  return written + (drawn ? ", simulation.html" : "");
}

}  // namespace ckv::ctl
