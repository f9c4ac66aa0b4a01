export { init, use } from "echarts/core";
import { use } from "echarts/core";
import { LineChart, BarChart, ScatterChart, CustomChart } from "echarts/charts";
import { GridComponent, TooltipComponent, AriaComponent, MarkLineComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";
use([LineChart, BarChart, ScatterChart, CustomChart, GridComponent, TooltipComponent, AriaComponent, MarkLineComponent, SVGRenderer]);
