#define ONEBIT_ISA_NAMESPACE ops_portable

#include "ops_table.inc.h"
