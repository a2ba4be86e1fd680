export default function RecommendView() { return <div className="empty">…</div>; }
